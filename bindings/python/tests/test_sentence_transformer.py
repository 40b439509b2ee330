"""`SentenceTransformer` against the numbers of sentence-transformers."""

import json

import numpy as np
import pytest
from conftest import GOLDENS, answers, arrays, texts
from safetensors.numpy import load_file

import sconce
from sconce import InputError, SentenceTransformer

TINY = ["st-cls-dense", "st-concat-prompts", "st-lasttoken", "st-legacy", "st-max", "st-mean-dense", "st-prompts"]


def test_minilm_equals_sentence_transformers(minilm):
    cases = json.loads((GOLDENS / "minilm" / "cases.json").read_text(encoding="utf-8"))
    want = load_file(GOLDENS / "minilm" / "embeddings.safetensors")["embeddings"]
    # Cases without a text are lines of a corpus that the engine's own test downloads.
    own = [i for i, case in enumerate(cases) if "text" in case or "repeat" in case]
    given = [cases[i].get("text") or cases[i].get("repeat", "") * cases[i].get("times", 0) for i in own]
    assert len(own) > 20
    got = minilm.encode(given)
    assert got.dtype == np.float32
    assert np.abs(got - want[own]).max() <= 1e-5


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_equal_sentence_transformers(golden, name):
    model, want = SentenceTransformer(golden(name)), arrays(name)["embeddings"]
    for i, case in enumerate(answers(name)):
        got = model.encode(case["text"], prompt_name=case.get("prompt_name"))
        assert np.abs(got - want[i]).max() <= 4e-6 * max(1, np.abs(want).max()), (name, i, case["text"])


def test_prompts_of_queries_and_documents(golden):
    model = SentenceTransformer(golden("st-prompts"))
    assert {"query", "document"} <= set(model.prompts)
    query = model.encode("hello", prompt=model.prompts["query"])
    assert (model.encode_query("hello") == query).all()
    assert (model.encode("hello", prompt_name="query") == query).all()
    assert (model.encode_document("hello") == model.encode("hello", prompt_name="document")).all()
    assert (query != model.encode_document("hello")).any()
    own = SentenceTransformer(golden("st-prompts"), prompts={"own": "query: "}, default_prompt_name="own")
    assert (own.encode("hello") == query).all()
    with pytest.raises(InputError, match="document"):
        model.encode("hello", prompt_name="title")


def test_every_model_has_the_prompts_query_and_document(minilm, golden):
    assert minilm.prompts == {"query": "", "document": ""}
    model = SentenceTransformer(golden("st-max"), prompts={"own": "own: ", "query": None}, default_prompt_name="own")
    assert model.prompts == {"query": "", "document": "", "own": "own: "}
    plain = SentenceTransformer(golden("st-max")).encode("hello")
    # The default prompt is that of `encode`: queries have their own, although it is empty.
    assert (model.encode("hello") != plain).any()
    assert (model.encode_query("hello") == plain).all() and (model.encode_document("hello") == plain).all()
    model.default_prompt_name = None
    assert (model.encode("hello") == plain).all()
    # The files name a default prompt, which the caller takes away.
    model = SentenceTransformer(golden("st-prompts"))
    assert model.default_prompt_name is not None
    with_default = model.encode("hello")
    model.default_prompt_name = None
    assert (model.encode("hello") == model.encode("hello", prompt="")).all()
    assert (model.encode("hello") != with_default).any()


def test_arguments_of_encode_query_and_encode_document(minilm):
    want = minilm.encode(["a", "b"], truncate_dim=8, normalize_embeddings=True)
    for encode in (minilm.encode_query, minilm.encode_document):
        positional = encode(["a", "b"], None, None, 32, False, "sentence_embedding", "float32", True, False, "cpu", True, 8)
        assert (positional == want).all()
        assert (encode(sentences=["a", "b"], truncate_dim=np.int64(8), normalize_embeddings=True) == want).all()
    with pytest.raises(TypeError):
        minilm.encode_query("a", unknown=1)
    with pytest.raises(InputError, match="pool"):
        minilm.encode("a", pool={"processes": []})


def test_arguments_of_the_constructor(golden):
    folder = golden("st-max")
    options = {"trust_remote_code": True, "model_kwargs": {"torch_dtype": "auto"}, "processor_kwargs": {}}
    model = SentenceTransformer(folder, tokenizer_kwargs=None, config_kwargs=None, **options)
    assert model.dtype == SentenceTransformer(folder).dtype
    for name in ("processor_kwargs", "tokenizer_kwargs", "config_kwargs", "model_kwargs"):
        with pytest.raises(InputError, match="padding_side"):
            SentenceTransformer(folder, **{name: {"padding_side": "left"}})
    with pytest.raises(TypeError, match="unknown"):
        SentenceTransformer(folder, unknown=1)
    with pytest.raises(InputError, match="backend"):
        SentenceTransformer(folder, backend="openvino")
    with pytest.raises(InputError, match="contradict"):
        SentenceTransformer(folder, backend="onnx", engine="native")
    with pytest.raises(InputError, match="unknown engine"):
        SentenceTransformer(folder, engine="torch")
    # The folder has weights and no graph, which is known before ONNX Runtime is looked for.
    with pytest.raises(sconce.FilesError, match="no ONNX model"):
        SentenceTransformer(folder, backend="onnx")
    with pytest.raises(InputError, match="--engine onnx"):
        SentenceTransformer(folder, engine="native", onnx_file="model.onnx")
    with pytest.raises(InputError, match="maxsim"):
        SentenceTransformer(folder, similarity_fn_name="maxsim")
    with pytest.raises(InputError, match="absent"):
        SentenceTransformer(folder, default_prompt_name="absent")


def test_one_text_gives_one_vector_and_none_an_empty_matrix(minilm):
    assert minilm.encode("one").shape == (384,)
    assert minilm.encode(["one"]).shape == (1, 384)
    assert minilm.encode([]).shape == (0, 384)
    assert minilm.get_sentence_embedding_dimension() == minilm.get_embedding_dimension() == 384
    assert (minilm.encode(sentences=["one"]) == minilm.encode(np.array(["one"]))).all()
    assert minilm.encode(np.array("one")).shape == (384,)


def test_numpy_shares_the_memory(minilm):
    embeddings = minilm.encode(["a", "b"])
    base = embeddings
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert type(base.base).__name__ == "Array" and not base.flags.owndata
    assert np.allclose(minilm.similarity_pairwise(embeddings, embeddings), 1, atol=1e-6)
    embeddings[0] = 0  # Writable, as sentence-transformers' arrays are.
    shared = np.from_dlpack(embeddings)
    assert shared.ctypes.data == embeddings.ctypes.data


def test_arrow_in_and_out(minilm):
    import pyarrow as pa

    want = minilm.encode(["a", "b", "c"])
    for given in (pa.array(["a", "b", "c"]), pa.chunked_array([["a"], ["b", "c"]])):
        assert (minilm.encode(given) == want).all()
    column = sconce.to_arrow(want)
    assert column.type == pa.list_(pa.float32(), 384) and len(column) == 3
    assert column.values.buffers()[1].address == want.ctypes.data
    assert (np.array(column.to_pylist(), np.float32) == want).all()
    with pytest.raises(InputError, match="null"):
        minilm.encode(pa.array(["a", None]))


def test_max_seq_length_truncates(minilm):
    long = "word " * 100
    whole = minilm.encode(long)
    try:
        minilm.max_seq_length = np.int64(12)
        cut = minilm.encode(long)
        assert minilm.max_seq_length == 12
        assert np.allclose(cut, minilm.encode("word " * 10), atol=1e-6)  # And two special tokens.
        assert minilm.tokenize([long, "a"])["attention_mask"].sum(1).tolist() == [12, 3]
    finally:
        minilm.max_seq_length = 256
    assert np.allclose(minilm.encode(long), whole, atol=1e-6) and not np.allclose(cut, whole, atol=1e-3)


def test_truncated_and_normalized_embeddings(golden):
    name = "task-outputs-truncate"
    model, want, given = SentenceTransformer(golden(name)), arrays(name), answers(name)
    whole = model.encode(given["texts"])
    for n in given["dimensions"]:
        got = model.encode(given["texts"], truncate_dim=n, normalize_embeddings=True)
        assert np.abs(got - want[f"normalized.{n}"]).max() <= 1e-5
        assert (model.encode(given["texts"], truncate_dim=n) == whole[:, :n]).all()
    # As in sentence-transformers, a number beyond the dimension truncates nothing.
    assert (model.encode(given["texts"], truncate_dim=whole.shape[1] + 1) == whole).all()
    with model.truncate_embeddings(9999):
        assert model.get_embedding_dimension() == whole.shape[1]
    with model.truncate_embeddings(np.int64(3)):
        assert model.encode("x").shape == (3,) and model.get_embedding_dimension() == 3
    with pytest.raises(InputError):
        model.encode("x", truncate_dim=0)


def test_quantized_embeddings_equal_sentence_transformers():
    want = arrays("task-outputs")
    for precision in ("int8", "uint8"):
        for source in ("own", "ranges", "calibration"):
            options = {"ranges": want["ranges"]} if source == "ranges" else {}
            options |= {"calibration_embeddings": want["calibration"]} if source == "calibration" else {}
            got = sconce.quantize_embeddings(want["embeddings"], precision, **options)
            assert (got.view("u1") == want[f"{precision}.{source}"].view("u1")).all() and got.dtype == precision
    for precision, dtype in (("binary", "int8"), ("ubinary", "uint8")):
        got = sconce.quantize_embeddings(want["embeddings"], precision)
        assert (got.view("u1") == want[precision].view("u1")).all() and got.dtype == dtype


def test_token_embeddings(minilm):
    one, two = minilm.encode(["A man is eating food.", "a"], output_value="token_embeddings")
    assert one.shape == (8, 384) and two.shape == (3, 384)
    mean = one.mean(0)
    assert np.allclose(mean / np.linalg.norm(mean), minilm.encode("A man is eating food."), atol=1e-6)


def test_progress_bar_does_not_change_the_result(minilm, capsys):
    given = [f"text {i}" for i in range(2100)]
    assert np.allclose(minilm.encode(given[:30]), minilm.encode(given, show_progress_bar=True)[:30], atol=1e-6)
    assert "2100" in capsys.readouterr().err


def test_counts_and_plan(minilm):
    before = sum(row["calls"] for row in minilm.counts())
    minilm.encode("a")
    after = minilm.counts()
    assert sum(row["calls"] for row in after) > before and {row["rung"] for row in after} == {"fused"}
    assert sum(row["calls"] for row in sconce.counts()) >= sum(row["calls"] for row in after)
    plan = sconce.plan(minilm._name, device="cpu")
    assert plan["runs"] and plan["dimension"] == 384 and {step["rung"] for step in plan["steps"]} == {"fused"}
    plan = sconce.plan(minilm._name, device="metal:7")
    assert not plan["runs"] and plan["why_not"]
    assert any(device["best"] for device in sconce.devices())


def test_unknown_words_of_goldens(golden):
    name = "task-static"
    model, given = SentenceTransformer(golden(name)), answers(name)["cases"]
    assert np.abs(model.encode(texts(given)) - arrays(name)["embeddings"]).max() <= 1e-5
