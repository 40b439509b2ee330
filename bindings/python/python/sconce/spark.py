"""Spark: pandas UDFs that embed, rerank and label texts.

Each Python worker of Spark loads a model once, at its first batch, and keeps it. The engine's threads
are the cores of a task (`spark.task.cpus`), so that as many models run as Spark starts tasks.
"""

from pyspark import TaskContext
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import ArrayType, FloatType, StringType, StructField, StructType

from . import machine
from .classifier import Classifier
from .cross_encoder import CrossEncoder
from .errors import DeviceError, InputError
from .progress import logger
from .sentence_transformer import SentenceTransformer
from .shared_models import shared_model


def embed_udf(model, *, kind=None, encode_options=None, threads=None, **options):
    """A pandas UDF from texts to embeddings, arrays of floats; null for null.

    `kind` is `query`, `document` or None, for `encode_query`, `encode_document` or `encode`, which
    gets `encode_options`. Other options are those of `SentenceTransformer`.
    """
    methods = {None: "encode", "query": "encode_query", "document": "encode_document"}
    if kind not in methods:
        raise InputError(f"kind is {kind!r}; use 'query', 'document' or None")
    method, encode_options = methods[kind], dict(encode_options or {})

    def embed(batches):
        loaded = _load(SentenceTransformer, model, threads, options)
        for texts in batches:
            yield _each(texts, lambda given: getattr(loaded, method)(given, show_progress_bar=False, **encode_options))

    return _iterator_udf(embed, ArrayType(FloatType()))


def rerank_udf(model, *, threads=None, **options):
    """A pandas UDF from a column of queries and one of documents to scores; null where one is null."""

    def score(batches):
        loaded = _load(CrossEncoder, model, threads, options)
        for queries, documents in batches:
            pairs = [None if q is None or d is None else (q, d) for q, d in zip(_plain(queries), _plain(documents))]
            yield _each(pairs, lambda given: [float(one) for one in loaded.predict(given, show_progress_bar=False)])

    return _iterator_udf(score, FloatType(), columns=2)


def classify_udf(model, *, threads=None, **options):
    """A pandas UDF from texts to structs of the best `label` and its `score`; null for null."""

    def label(batches):
        loaded = _load(Classifier, model, threads, options)
        for texts in batches:
            rows = _each(texts, lambda given: [row[0] for row in loaded.classify(given, top_k=1)])
            yield _frame(rows)

    return _iterator_udf(label, StructType([StructField("label", StringType()), StructField("score", FloatType())]))


def _iterator_udf(function, returns, columns=1):
    from collections.abc import Iterator

    import pandas

    # Spark reads the kind of a UDF from its annotations. They are set here, so that pandas is not
    # needed to import this module.
    series = pandas.Series if columns == 1 else tuple[(pandas.Series,) * columns]
    result = pandas.DataFrame if isinstance(returns, StructType) else pandas.Series
    function.__annotations__ = {"batches": Iterator[series], "return": Iterator[result]}
    return pandas_udf(function, returnType=returns)


def _load(cls, model, threads, options):
    """The model of this Python worker."""
    context = TaskContext.get()
    threads = threads or (context.cpus() if context is not None else None)
    if threads:
        try:
            machine.set_threads(threads)
        except DeviceError as error:
            logger.warning(str(error))
    return shared_model(cls, model, **options)


def _plain(series):
    """The values of a series, with None for what pandas has for null."""
    return [one if isinstance(one, str) else None for one in series]


def _each(values, run):
    """A series of results: of `run` for what is not null, null for the rest."""
    import pandas

    values = values if isinstance(values, list) else _plain(values)
    given = [one for one in values if one is not None]
    results = iter(run(given) if given else [])
    return pandas.Series([None if one is None else next(results) for one in values], dtype=object)


def _frame(rows):
    """A frame of labels and scores."""
    import pandas

    labels = [None if row is None else row["label"] for row in rows]
    scores = [None if row is None else row["score"] for row in rows]
    return pandas.DataFrame({"label": labels, "score": scores})
