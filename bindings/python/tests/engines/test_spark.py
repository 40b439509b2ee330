"""Spark: the results of the UDFs are those of the direct API, with one model per Python worker."""

import os
import shutil
import sys

import numpy as np
import pytest

from sconce import Classifier, CrossEncoder, SentenceTransformer

TEXTS = [f"text number {i}" for i in range(50)]


@pytest.fixture(scope="module")
def spark():
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    }
    builder = SparkSession.builder.master("local[2]").appName("sconce")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def test_udfs(spark, golden):
    from sconce.spark import classify_udf, embed_udf, rerank_udf

    rows = [(i, text, "number") for i, text in enumerate(TEXTS)] + [(50, None, "number")]
    frame = spark.createDataFrame(rows, "id int, text string, query string").repartition(4)
    embedder, reranker, classifier = (str(golden(name)) for name in ("st-prompts", "task-rerank", "task-classify"))
    frame = frame.withColumn("embedding", embed_udf(embedder, kind="query", device="cpu")("text"))
    frame = frame.withColumn("score", rerank_udf(reranker, device="cpu")("query", "text"))
    frame = frame.withColumn("best", classify_udf(classifier, device="cpu")("text"))
    got = {row["id"]: row for row in frame.collect()}
    assert sorted(got) == list(range(51))
    assert got[50]["embedding"] is None and got[50]["score"] is None and got[50]["best"]["label"] is None
    assert np.array_equal([got[i]["embedding"] for i in range(50)], SentenceTransformer(embedder).encode_query(TEXTS))
    want = CrossEncoder(reranker).predict([("number", text) for text in TEXTS])
    assert np.allclose([got[i]["score"] for i in range(50)], want, atol=1e-6)
    want = [row[0] for row in Classifier(classifier).classify(TEXTS)]
    assert [got[i]["best"]["label"] for i in range(50)] == [one["label"] for one in want]
    assert np.allclose([got[i]["best"]["score"] for i in range(50)], [one["score"] for one in want], atol=1e-6)


def test_a_worker_loads_a_model_once(spark, golden):
    name = str(golden("st-prompts"))

    def loaded(batches):
        from sconce.spark import SentenceTransformer, shared_model

        for batch in batches:
            model = shared_model(SentenceTransformer, name, device="cpu")
            yield batch.assign(worker=os.getpid(), model=id(model))

    frame = spark.createDataFrame([(text,) for text in TEXTS], "text string").repartition(8)
    rows = frame.mapInPandas(loaded, "text string, worker long, model long").collect()
    rows += frame.mapInPandas(loaded, "text string, worker long, model long").collect()
    assert len(rows) == 2 * len(TEXTS)
    # Eight tasks, twice, in two workers.
    pairs = {(row["worker"], row["model"]) for row in rows}
    assert len(pairs) == len({worker for worker, _ in pairs}) <= 2
