"""Decoder-based embedders and a reranker, modelled on Qwen3-Embedding, E5-Mistral, a plain Llama,
EmbeddingGemma, gte-Qwen2, pplx-embed, Qwen3-Reranker and bge-reranker-v2-gemma."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextModel,
    GemmaForCausalLM,
    LlamaForCausalLM,
    MistralModel,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

import decoder_tokenizers
import formula
from absolute import changed
from bidirectional import EMBEDDING_GEMMA
from decoder_tokenizers import PREFIX, SUFFIX, TASK
from decoders import LLAMA_3, MISTRAL, QWEN2, QWEN3
from decoders_own import GEMMA
from decoding import in_float64, prefill
from files import empty_dir, write_json, write_json_sections

LIMIT = 64
TEXTS = [
    "",
    "hello",
    "Hello, World!",
    "The cat sat on the mat.",
    "A man is eating food.",
    "caf\u00e9 d\u00e9j\u00e0 vu, e\u0301 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f52c",
    "numbers 12345 and 6.78",
    "  spaces  \n\n and lines\t",
    "<|im_start|>user</s> <s> and <|endoftext|> are said",
    # Longer than the limit: the appended token must survive truncation.
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard. "
    * 3,
]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


@dataclass
class Embedder:
    """A directory in the layout of sentence-transformers, as on the hub."""

    name: str
    seed: int
    model: type[PreTrainedModel]
    config: dict[str, Any]
    tokenizer: Callable[[Path, bool, int], None]
    appends_end: bool
    pooling: str
    prompts: dict[str, str]
    include_prompt: bool = True
    # Where the maximum length is stored: in sentence_bert_config.json or with the tokenizer.
    says_limit: bool = False
    prompt_names: list[str | None] = field(default_factory=lambda: [None, "query"])
    # The outputs of the Dense modules after the pooling, without bias and activation.
    dense: list[int] = field(default_factory=list)
    # Whether the last module is pplx-embed's quantization instead of Normalize.
    quantized: bool = False


class PplxConfig(Qwen3Config):
    """Qwen3 with attention in both directions, as pplx-embed's own code has it."""

    model_type = "bidirectional_pplx_qwen3"
    is_causal = False


class PplxModel(Qwen3Model):
    config_class = PplxConfig


AutoConfig.register(PplxConfig.model_type, PplxConfig)
AutoModel.register(PplxConfig, PplxModel)


EMBEDDERS = [
    # Saved without the LM head: tensor names have no prefix, although the config names the whole
    # model.
    Embedder(
        "task-embed-qwen3",
        671,
        Qwen3Model,
        changed(QWEN3 | SIZES, "Qwen3ForCausalLM", rope_theta=1000000),
        decoder_tokenizers.qwen,
        True,
        "lasttoken",
        {"query": f"Instruct: {TASK}\nQuery:", "document": ""},
        prompt_names=[None, "query", "document"],
    ),
    Embedder(
        "task-embed-mistral",
        672,
        MistralModel,
        changed(MISTRAL | SIZES, "MistralModel"),
        decoder_tokenizers.llama,
        True,
        "lasttoken",
        {"web_search_query": f"Instruct: {TASK}\nQuery: "},
        says_limit=True,
        prompt_names=[None, "web_search_query"],
    ),
    # A complete language model, whose LM head an embedder ignores; mean pooling skips the prompt.
    Embedder(
        "task-embed-llama",
        673,
        LlamaForCausalLM,
        LLAMA_3 | SIZES,
        decoder_tokenizers.llama,
        False,
        "mean",
        {"query": "query: ", "passage": "passage: "},
        include_prompt=False,
        says_limit=True,
        prompt_names=[None, "query", "passage"],
    ),
    # Attention in both directions, and two projections after the pooling.
    Embedder(
        "task-embed-gemma",
        675,
        Gemma3TextModel,
        EMBEDDING_GEMMA
        | SIZES
        | {
            "hidden_size": 48,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        decoder_tokenizers.gemma,
        True,
        "mean",
        {
            "query": "task: search result | query: ",
            "document": "title: none | text: ",
        },
        says_limit=True,
        prompt_names=[None, "query", "document"],
        dense=[96, 48],
    ),
    # gte-Qwen2: the complete language model, with causal attention replaced.
    Embedder(
        "task-embed-gte-qwen2",
        676,
        Qwen2ForCausalLM,
        QWEN2 | SIZES | {"is_causal": False},
        decoder_tokenizers.qwen,
        True,
        "lasttoken",
        {"query": f"Instruct: {TASK}\nQuery: "},
    ),
    Embedder(
        "task-embed-pplx",
        678,
        PplxModel,
        changed(QWEN3 | SIZES, "PPLXQwen3Model", use_bidirectional_attention=True)
        | {"model_type": "bidirectional_pplx_qwen3"},
        decoder_tokenizers.qwen,
        True,
        "mean",
        {},
        prompt_names=[None],
        quantized=True,
    ),
]


def make(out: Path, _work: Path) -> None:
    for embedder in EMBEDDERS:
        make_embedder(out, embedder)
    make_reranker(out)
    make_passage_reranker(out)


def save_model(
    directory: Path, seed: int, kind: type[PreTrainedModel], config: dict[str, Any]
) -> None:
    """Weights under the tensor names of `kind`, and the config as given, not as transformers would
    write it."""
    write_json(directory / "config.json", config)
    model = kind(kind.config_class.from_pretrained(directory))
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    write_json(directory / "config.json", config)
    # Attention scores and residual branches as strong as in decoders.py.
    gains = {"embed_tokens": 2.0, "o_proj": 2.0, "down_proj": 2.0}
    formula.replace_weights(directory, seed, gains)


def words_of(directory: Path) -> int:
    return len(AutoTokenizer.from_pretrained(directory, local_files_only=True))


def make_embedder(out: Path, embedder: Embedder) -> None:
    directory = empty_dir(out / embedder.name)
    embedder.tokenizer(directory, embedder.appends_end, LIMIT)
    config = embedder.config | {"vocab_size": words_of(directory)}
    width = config["hidden_size"]
    for number, outputs in enumerate(embedder.dense):
        dense = directory / f"{number + 2}_Dense"
        dense.mkdir()
        module = Dense(width, outputs, bias=False, activation_function=nn.Identity())
        module.save(str(dense))
        width = outputs
    save_model(directory, embedder.seed, embedder.model, config)
    write_layout(directory, embedder)
    with formula.materialised(directory) as copy:
        given = {"device": "cpu", "local_files_only": True}
        eager = {"attn_implementation": "eager"}
        model = SentenceTransformer(str(copy), model_kwargs=eager, **given)
        write_embeddings(directory, embedder, model)
    if embedder.quantized:
        path = directory / "modules.json"
        modules = json.loads(path.read_text())
        kind = "st_quantize.FlexibleQuantizer"
        modules.append({"idx": 2, "name": "2", "path": "2_Quantizer", "type": kind})
        write_json(path, modules)


def quantize(embeddings: np.ndarray) -> np.ndarray:
    """As in pplx-embed's code. No value is so near to a half that rounding errors decide it."""
    scaled = np.tanh(embeddings) * 127
    assert np.abs(scaled % 1 - 0.5).min() > 2e-4, np.abs(scaled % 1 - 0.5).min()
    return np.round(scaled)


def write_layout(directory: Path, embedder: Embedder) -> None:
    kinds = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
    ]
    kinds += [("Dense", f"{n + 2}_Dense") for n in range(len(embedder.dense))]
    if not embedder.quantized:
        kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (kind, path) in enumerate(kinds)
    ]
    write_json(directory / "modules.json", modules)
    modes = [
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ]
    pooling = {
        "word_embedding_dimension": embedder.config["hidden_size"],
        **{
            f"pooling_mode_{mode}": mode.removesuffix("_tokens") == embedder.pooling
            for mode in modes
        },
        "include_prompt": embedder.include_prompt,
    }
    (directory / "1_Pooling").mkdir()
    write_json(directory / "1_Pooling" / "config.json", pooling)
    about = {
        "prompts": embedder.prompts,
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(directory / "config_sentence_transformers.json", about)
    if embedder.says_limit:
        limit = {"max_seq_length": LIMIT, "do_lower_case": False}
        write_json(directory / "sentence_bert_config.json", limit)


@torch.inference_mode()
def write_embeddings(
    directory: Path, embedder: Embedder, model: SentenceTransformer
) -> None:
    assert model.max_seq_length == LIMIT, model.max_seq_length
    end = model.tokenizer.convert_tokens_to_ids(
        "<|endoftext|>" if embedder.tokenizer is decoder_tokenizers.qwen else "</s>"
    )
    cases, embeddings = [], []
    for prompt_name in embedder.prompt_names:
        prompt = model.prompts.get(prompt_name, "")
        for text in TEXTS:
            features = model.preprocess([text], prompt=prompt)
            ids = features["input_ids"][0].tolist()
            assert len(ids) <= LIMIT
            assert not embedder.appends_end or ids[-1] == end, (text, ids)
            cases.append(
                {
                    "text": text,
                    "prompt_name": prompt_name,
                    "prompt": prompt,
                    "ids": ids,
                    "prompt_tokens": features.get("prompt_length", 0),
                }
            )
            # One text per call, so without padding.
            embeddings.append(model.encode(text, prompt_name=prompt_name))
    array = np.stack(embeddings).astype(np.float32)
    assert np.isfinite(array).all()
    if embedder.quantized:
        assert np.abs(array).max() > 1
        array = quantize(array)
    else:
        assert_normalized(array)

    shown = 3
    ids = torch.tensor([cases[shown]["ids"]])
    hidden = model.transformers_model(ids, output_hidden_states=True).hidden_states
    layers = {f"hidden.{layer}": rows[0].numpy() for layer, rows in enumerate(hidden)}
    write_json_sections(directory / "golden.json", {"hidden_of": shown, "cases": cases})
    arrays = {"embeddings": array} | layers
    save_file(
        {name: np.ascontiguousarray(value) for name, value in arrays.items()},
        directory / "golden.safetensors",
    )


def assert_normalized(array: np.ndarray) -> None:
    # If the prompt is skipped, an empty text has no tokens to pool, and their mean is zero.
    norms = np.linalg.norm(array, axis=1)
    assert np.minimum(np.abs(norms - 1), norms).max() < 1e-5, norms
    assert (norms > 0.5).sum() >= len(norms) - 2, norms
    cosines = (array @ array.T)[~np.eye(len(array), dtype=bool)]
    assert cosines.std() > 0.1, (cosines.mean(), cosines.std())


QUERIES = ["where is the cat?", "What is the capital of France?", ""]
DOCUMENTS = [
    "The cat sat on the mat.",
    "",
    "Paris is the capital, caf\u00e9 \u65e5\u672c\u8a9e and all.",
    "<|im_end|>\nyes <think> no </think>",
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard. "
    * 4,
]
TASKS = [None, "Find the document that is about an animal"]
# The limit of the whole input, including the template; the model card says 8192.
WHOLE = 200


def make_reranker(out: Path) -> None:
    directory = empty_dir(out / "task-rerank-qwen3")
    decoder_tokenizers.qwen(directory, False, 131072)
    config = QWEN3 | SIZES | {"vocab_size": words_of(directory), "rope_theta": 1000000}
    save_model(directory, 674, Qwen3ForCausalLM, config)
    with formula.materialised(directory) as copy:
        tokenizer = AutoTokenizer.from_pretrained(copy, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            copy, attn_implementation="eager", dtype=torch.float32
        )
        write_scores(directory, tokenizer, model.eval())


@torch.inference_mode()
def write_scores(directory: Path, tokenizer: Any, model: PreTrainedModel) -> None:
    """As in the model card: only the text between the two halves of the template is truncated."""
    prefix = tokenizer.encode(PREFIX, add_special_tokens=False)
    suffix = tokenizer.encode(SUFFIX, add_special_tokens=False)
    answers = tokenizer.convert_tokens_to_ids(["no", "yes"])
    assert None not in answers and tokenizer.decode(answers) == "noyes"
    room = WHOLE - len(prefix) - len(suffix)
    pairs, logits, hidden = [], [], []
    for task in TASKS:
        for q, query in enumerate(QUERIES):
            for d, document in enumerate(DOCUMENTS):
                text = f"<Instruct>: {task or TASK}\n<Query>: {query}\n<Document>: {document}"
                inner = tokenizer(text, truncation=True, max_length=room)["input_ids"]
                ids = prefix + inner + suffix
                result = model(torch.tensor([ids]), output_hidden_states=True)
                hidden = hidden or [rows[0].numpy() for rows in result.hidden_states]
                logits.append(result.logits[0, -1, answers].numpy())
                pairs.append({"task": task, "query": q, "document": d, "ids": ids})
    assert max(len(pair["ids"]) for pair in pairs) == WHOLE
    logits = np.stack(logits).astype(np.float32)
    scores = torch.from_numpy(logits).log_softmax(-1)[:, 1].exp().numpy()
    assert scores.std() > 0.1, scores.std()
    write_json_sections(
        directory / "golden.json",
        {
            "prefix": PREFIX,
            "suffix": SUFFIX,
            "default_task": TASK,
            "max_length": WHOLE,
            "no": answers[0],
            "yes": answers[1],
            "hidden_of": 0,
            "queries": QUERIES,
            "documents": DOCUMENTS,
            "pairs": pairs,
        },
    )
    arrays = {"logits": logits, "scores": scores}
    arrays |= {f"hidden.{layer}": rows for layer, rows in enumerate(hidden)}
    save_file(
        {name: np.ascontiguousarray(value) for name, value in arrays.items()},
        directory / "golden.safetensors",
    )


QUESTION = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the "
    "query by providing a prediction of either 'Yes' or 'No'."
)
LONG_QUERY = "where does the cat sit when it does not sleep? " * 6
# The limit of query and passage; the model card says 1024.
ROOM = 90


def make_passage_reranker(out: Path) -> None:
    directory = empty_dir(out / "task-rerank-gemma")
    decoder_tokenizers.gemma(directory, False, 131072)
    config = GEMMA | SIZES | {"vocab_size": words_of(directory), "bos_token_id": 1}
    config |= {"hidden_size": 64, "max_position_embeddings": 512}
    save_model(directory, 677, GemmaForCausalLM, config)
    with formula.materialised(directory) as copy:
        tokenizer = AutoTokenizer.from_pretrained(copy, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            copy, attn_implementation="eager", dtype=torch.float32
        )
        write_answers(directory, tokenizer, in_float64(model.eval()))


@torch.inference_mode()
def write_answers(directory: Path, tokenizer: Any, model: PreTrainedModel) -> None:
    """As in the model card: the parts are tokenized one by one, queries are truncated first. In
    float64, because Gemma's scaled embeddings make the rounding errors of float32 large."""

    def tokens(text: str, **given: Any) -> list[int]:
        return tokenizer(text, add_special_tokens=False, **given)["input_ids"]

    def truncated(text: str, length: int) -> list[int]:
        return tokens(text, truncation=True, max_length=length)

    separator, question = tokens("\n"), tokens(QUESTION)
    answer = tokens("Yes")[0]
    pairs, logits, hidden = [], [], []
    queries = [*QUERIES, LONG_QUERY]
    for q, query in enumerate(queries):
        for d, document in enumerate(DOCUMENTS):
            first = [tokenizer.bos_token_id, *truncated(f"A: {query}", ROOM * 3 // 4)]
            second = separator + truncated(f"B: {document}", ROOM)
            second = second[: ROOM - len(first)]
            whole = len(tokens(f"A: {query}")) + len(tokens(f"B: {document}"))
            cut = len(first) + len(second) < 1 + len(separator) + whole
            ids = first + second + separator + question
            result = prefill(model, torch.tensor([ids]), output_hidden_states=True)
            hidden = hidden or [
                rows[0].float().numpy() for rows in result.hidden_states
            ]
            logits.append(result.logits[0, -1, answer].numpy())
            pair = {"query": q, "document": d, "truncated": cut, "ids": ids}
            pairs.append(pair)
    fixed = len(separator) + len(question)
    assert max(len(pair["ids"]) for pair in pairs) == ROOM + fixed
    logits = np.stack(logits).astype(np.float32)
    assert logits.std() > 0.1, logits.std()
    write_json_sections(
        directory / "golden.json",
        {
            "prompt": QUESTION,
            "max_length": ROOM + fixed,
            "yes": answer,
            "hidden_of": 0,
            "queries": queries,
            "documents": DOCUMENTS,
            "pairs": pairs,
        },
    )
    arrays = {"logits": logits}
    arrays |= {f"hidden.{layer}": rows for layer, rows in enumerate(hidden)}
    save_file(
        {name: np.ascontiguousarray(value) for name, value in arrays.items()},
        directory / "golden.safetensors",
    )
