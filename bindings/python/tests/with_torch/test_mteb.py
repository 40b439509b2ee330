"""The adapter for mteb, on tasks of its own kinds whose texts are made here (.ci/long)."""

import mteb
import numpy as np
from datasets import Dataset
from mteb._create_dataloaders import create_dataloader
from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol
from mteb.types import PromptType

from sconce import CrossEncoder, SentenceTransformer
from sconce.integrations.mteb import SconceCrossEncoder, SconceEncoder

TEXTS = ["the cat sat on the mat", "a man is eating food", "hello world"]


def batches(texts, task):
    return create_dataloader(Dataset.from_dict({"text": texts}), task_metadata=task.metadata, batch_size=2)


def options(task, prompt_type=None):
    return {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default", "prompt_type": prompt_type}


def test_encoder(golden):
    name = str(golden("st-prompts"))
    task, model = mteb.get_task("STS12"), SentenceTransformer(name)
    encoder = SconceEncoder(name)
    assert isinstance(encoder, EncoderProtocol)
    assert encoder.mteb_model_meta.embed_dim == model.get_embedding_dimension()
    assert encoder.mteb_model_meta.name == name
    for prompt_type, encode in ((None, model.encode), (PromptType.query, model.encode_query), (PromptType.document, model.encode_document)):
        got = encoder.encode(batches(TEXTS, task), **options(task, prompt_type), batch_size=2, show_progress_bar=False)
        assert np.allclose(got, encode(TEXTS), atol=1e-6)
    # A prompt of the task comes before that of the type.
    own = SconceEncoder(model, model_prompts={"STS12": "query: ", "query": "other: "})
    got = own.encode(batches(TEXTS, task), **options(task, PromptType.query))
    assert np.allclose(got, model.encode(TEXTS, prompt="query: "), atol=1e-6)
    assert encoder.similarity(got, got).shape == (3, 3)


def test_cross_encoder(golden):
    name = str(golden("task-rerank"))
    task, encoder = mteb.get_task("AskUbuntuDupQuestions"), SconceCrossEncoder(name)
    assert isinstance(encoder, CrossEncoderProtocol)
    got = encoder.predict(batches(TEXTS, task), batches(TEXTS[::-1], task), **options(task))
    assert np.allclose(got, CrossEncoder(name).predict(list(zip(TEXTS, TEXTS[::-1]))), atol=1e-6)


def test_evaluation(golden, tmp_path):
    """A whole evaluation, on a task whose data are here instead of on the hub."""
    task = mteb.get_task("STS12")
    rows = {"sentence1": TEXTS * 4, "sentence2": (TEXTS[1:] + TEXTS[:1]) * 2 + TEXTS * 2, "score": [0.0, 1.0, 2.0, 3.0] * 3}
    task.dataset, task.data_loaded = {"test": Dataset.from_dict(rows)}, True
    result = mteb.evaluate(SconceEncoder(str(golden("st-prompts"))), task, cache=None)
    assert -1 <= result.task_results[0].get_score() <= 1
