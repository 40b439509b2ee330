"""Callable classes for `map_batches`: each loads a model once per actor and adds columns to batches.

A batch of Ray is a table of rows. The engine packs its texts into micro-batches by tokens itself,
so the number of rows in a batch changes how often results are handed over, not how full the device
is.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy
import pyarrow

from ..classifier import Classifier
from ..cross_encoder import CrossEncoder
from ..errors import InputError, UnsoundError
from ..llm import Llm
from ..sentence_transformer import SentenceTransformer
from .threads import use_threads

# What one row can cause. Anything else (a device that fails, a closed model) fails the batch.
_ROW_ERRORS = (InputError, UnsoundError, TypeError)


class Stage:
    """A model in an actor of Ray Data. Batches are Arrow tables; other formats are converted.

    `threads` is the number of CPU threads of the engine, by default the CPUs of the actor. With
    `errors="null"`, rows that cannot be computed get null, and the reason in the column
    `COLUMN_error`; with `errors="raise"` they fail the batch. Other options are those of the class
    that loads the model.
    """

    # The class that loads the model.
    _class = None

    def __init__(self, model, *, column, threads=None, errors="raise", **options):
        if errors not in ("raise", "null"):
            raise InputError(f"errors is {errors!r}; use 'raise' or 'null'")
        self.column, self.errors = column, errors
        use_threads(threads)
        self.model = self._class(model, **options)

    def __call__(self, batch):
        table = as_table(batch)
        rows = self._rows(table)
        reasons = {}
        parts = self._parts(rows, 0, reasons) if rows else []
        columns = self._columns(table, parts, sorted(reasons))
        if self.errors == "null":
            texts = pyarrow.array([reasons.get(i) for i in range(len(rows))], pyarrow.string())
            columns[f"{self.column}_error"] = texts
        for name, column in columns.items():
            if name in table.column_names:
                raise InputError(f"the rows have a column `{name}` already; give another name for the results")
            table = table.append_column(name, column)
        return table

    def _parts(self, rows, first, reasons):
        """Results of rows as a list of parts, in order. A part without results is a row that failed."""
        try:
            return [self._compute(rows)]
        except _ROW_ERRORS as error:
            if self.errors == "raise":
                hint = "errors='null' keeps the other rows and says the reason in a column"
                raise type(error)(f"{error} (in a batch of {len(rows)} rows; {hint})") from error
            if len(rows) == 1:
                reasons[first] = str(error)
                return []
        # Halves, so that few bad rows cost few passes.
        middle = len(rows) // 2
        return self._parts(rows[:middle], first, reasons) + self._parts(rows[middle:], first + middle, reasons)

    def _rows(self, table):
        """What the model takes, a list with an item for each row."""
        raise NotImplementedError

    def _compute(self, rows):
        """The results of rows."""
        raise NotImplementedError

    def _columns(self, table, parts, failed):
        """The new columns of a table, by name. `parts` lack the rows `failed`."""
        raise NotImplementedError


class Embed(Stage):
    """Adds the column `column` with embeddings, fixed-size lists, of the texts in the column `text`.

    `kind` is `query`, `document` or None, for `encode_query`, `encode_document` or `encode`.
    `encode_options` are passed to that method: `normalize_embeddings`, `prompt_name`, `precision`.
    """

    _class = SentenceTransformer

    def __init__(self, model, *, text="text", column="embedding", kind=None, encode_options=None, **options):
        methods = {None: "encode", "query": "encode_query", "document": "encode_document"}
        if kind not in methods:
            raise InputError(f"kind is {kind!r}; use 'query', 'document' or None")
        self.text, self._method, self._encode_options = text, methods[kind], dict(encode_options or {})
        super().__init__(model, column=column, **options)

    def _rows(self, table):
        return values(table, self.text)

    def _compute(self, rows):
        return getattr(self.model, self._method)(rows, show_progress_bar=False, **self._encode_options)

    def _columns(self, table, parts, failed):
        if not parts:  # Also the type of a column without any value tells the dimension.
            parts = [self._compute([])]
        matrix = numpy.ascontiguousarray(parts[0] if len(parts) == 1 else numpy.concatenate(parts))
        count, width, mask = table.num_rows, matrix.shape[1], None
        if failed:
            kept = matrix
            matrix = numpy.zeros((count, width), kept.dtype)
            matrix[numpy.setdiff1d(numpy.arange(count), failed)] = kept
            mask = _mask(count, failed)
        flat = pyarrow.array(matrix.reshape(-1))
        return {self.column: pyarrow.FixedSizeListArray.from_arrays(flat, width, mask=mask)}


class Rerank(Stage):
    """Adds the column `column` with the scores of documents for queries.

    A row has a query in the column `query`, and in the column `document` a document, or a list of
    documents: then its result is a list of scores. `predict_options` are those of
    `CrossEncoder.predict`.
    """

    _class = CrossEncoder

    def __init__(self, model, *, query="query", document="document", column="score", predict_options=None, **options):
        self.query, self.document, self._predict_options = query, document, dict(predict_options or {})
        super().__init__(model, column=column, **options)
        if self.model.num_labels != 1:
            raise InputError(f"{model} has {self.model.num_labels} labels; reranking needs a model with one score")

    def _rows(self, table):
        documents = values(table, self.document)
        if not self._has_lists(table):
            documents = [[document] for document in documents]
        return list(zip(values(table, self.query), documents))

    def _has_lists(self, table):
        return _is_list(table.schema.field(_index(table, self.document)).type)

    def _compute(self, rows):
        pairs, sizes = [], []
        for query, documents in rows:
            if not isinstance(query, str) or documents is None or not all(isinstance(d, str) for d in documents):
                raise InputError("a query or a document is not a text")
            pairs += [(query, d) for d in documents]
            sizes.append(len(documents))
        scores = self.model.predict(pairs, show_progress_bar=False, **self._predict_options) if pairs else []
        scores = numpy.asarray(scores, numpy.float32)
        return numpy.split(scores, numpy.cumsum(sizes)[:-1])

    def _columns(self, table, parts, failed):
        rows = _with_gaps([row for part in parts for row in part], table.num_rows, failed)
        if self._has_lists(table):
            return {self.column: pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))}
        scores = [None if row is None else row[0] for row in rows]
        return {self.column: pyarrow.array(scores, pyarrow.float32())}


class Classify(Stage):
    """Adds the best label of the texts in the column `text`, and its score in the column `score`.

    With `top_k`, the column `column` has a list of `{"label", "score"}` instead, best first. `pair`
    names the column of second texts.
    """

    _class = Classifier

    def __init__(self, model, *, text="text", pair=None, column="label", score="score", top_k=None, **options):
        self.text, self.pair, self.score, self.top_k = text, pair, score, top_k
        super().__init__(model, column=column, **options)

    def _rows(self, table):
        first = values(table, self.text)
        return first if self.pair is None else list(zip(first, values(table, self.pair)))

    def _compute(self, rows):
        return self.model.classify(rows, top_k=self.top_k or 1)

    def _columns(self, table, parts, failed):
        rows = _with_gaps([row for part in parts for row in part], table.num_rows, failed)
        if self.top_k is not None:
            fields = pyarrow.struct([("label", pyarrow.string()), ("score", pyarrow.float32())])
            return {self.column: pyarrow.array(rows, pyarrow.list_(fields))}
        labels = [None if row is None else row[0]["label"] for row in rows]
        scores = [None if row is None else row[0]["score"] for row in rows]
        return {
            self.column: pyarrow.array(labels, pyarrow.string()),
            self.score: pyarrow.array(scores, pyarrow.float32()),
        }


class Generate(Stage):
    """Adds the answers of a language model to the prompts in the column `prompt`.

    A prompt is a text or a list of messages (`{"role", "content"}`). With `chat=False` texts are
    continued as they are. `generate_options` are those of `Llm.chat`: `max_tokens`, `temperature`,
    `schema`. The column `finish` says why an answer ends: `end`, `length` or `stop`. `requests`
    prompts are given to the engine at once, which runs them together (continuous batching).
    """

    _class = Llm

    def __init__(
        self,
        model,
        *,
        prompt="prompt",
        column="answer",
        finish="finish",
        chat=True,
        generate_options=None,
        requests=64,
        **options,
    ):
        self.prompt, self.finish, self.chat = prompt, finish, chat
        self._generate_options = dict(generate_options or {})
        if self._generate_options.get("n", 1) != 1:
            raise InputError("a row has one answer: leave out `n`")
        super().__init__(model, column=column, **options)
        self._executor = ThreadPoolExecutor(requests, thread_name_prefix="sconce generate")

    def __getstate__(self):
        # Threads are not pickled; the other process starts its own.
        return self.__dict__ | {"_executor": self._executor._max_workers}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._executor = ThreadPoolExecutor(state["_executor"], thread_name_prefix="sconce generate")

    def _rows(self, table):
        return values(table, self.prompt)

    def _compute(self, rows):
        futures = [self._executor.submit(self._answer, row) for row in rows]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _answer(self, prompt):
        if not isinstance(prompt, (str, list)) or not prompt:
            raise InputError("a prompt is neither a text nor a list of messages")
        run = self.model.chat if self.chat or isinstance(prompt, list) else self.model.generate
        return run(prompt, **self._generate_options)

    def _columns(self, table, parts, failed):
        rows = _with_gaps([answer for part in parts for answer in part], table.num_rows, failed)
        columns = {self.column: pyarrow.array([answer and answer.text for answer in rows], pyarrow.string())}
        if self.finish is not None:
            columns[self.finish] = pyarrow.array([answer and answer.finish for answer in rows], pyarrow.string())
        return columns


def as_table(batch):
    """A batch in any of Ray's formats as an Arrow table."""
    if isinstance(batch, pyarrow.Table):
        return batch
    if isinstance(batch, dict):
        return pyarrow.table({name: list(column) for name, column in batch.items()})
    if hasattr(batch, "iloc"):
        return pyarrow.Table.from_pandas(batch, preserve_index=False)
    raise TypeError(f"a batch is {type(batch).__name__}; use batch_format='pyarrow'")


def values(table, name):
    """The values of a column as a list."""
    return table.column(_index(table, name)).to_pylist()


def _index(table, name):
    found = table.schema.get_field_index(name)
    if found < 0:
        raise InputError(f"the rows have no column `{name}`, but {', '.join(table.column_names) or 'none at all'}")
    return found


def _is_list(kind):
    return pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)


def _mask(count, failed):
    mask = numpy.zeros(count, bool)
    mask[failed] = True
    return pyarrow.array(mask)


def _with_gaps(rows, count, failed):
    """Results with None for the rows that failed."""
    if not failed:
        return rows
    rest, failed = iter(rows), set(failed)
    return [None if i in failed else next(rest) for i in range(count)]
