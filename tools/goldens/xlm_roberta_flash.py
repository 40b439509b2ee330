"""XLM-RoBERTa in the layout of its flash-attention code: jina-reranker-v2 and jina-embeddings-v3,
whose tasks each have a low-rank update of every matrix. Our own implementation, after the authors'
published code; checked against transformers."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu
from transformers import XLMRobertaConfig, XLMRobertaModel

import tiny
from absolute import changed
from files import empty_dir, write_json, write_json_lines
from plain import Weights, attention, linear, norm, rotate
from synthetic import (
    HEAD_LENGTHS,
    LONG_LENGTHS,
    WIDE_LENGTHS,
    Rule,
    Variant,
    all_in_float64,
    spread,
    weights,
    write_plain,
    write_tensors,
)
from sentence import TEXTS

# As in jina-reranker-v2-base-multilingual.
RERANKER = {
    "architectures": ["XLMRobertaForSequenceClassification"],
    "attention_probs_dropout_prob": 0.1,
    "auto_map": {
        "AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "modeling_xlm_roberta.XLMRobertaModel",
    },
    "bos_token_id": 0,
    "classifier_dropout": None,
    "emb_pooler": None,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 42,
    "model_type": "xlm-roberta",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "type_vocab_size": 1,
    "use_cache": False,
    "use_flash_attn": True,
    "vocab_size": 99,
}
# As in jina-embeddings-v3, without its tasks.
ROTARY = changed(
    RERANKER,
    "XLMRobertaModel",
    max_position_embeddings=8194,
    position_embedding_type="rotary",
    rotary_emb_base=20000.0,
)
TASKS = {
    "load_trained_adapters": True,
    "lora_adaptations": ["retrieval.query", "retrieval.passage", "text-matching"],
    "lora_alpha": 2,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 4,
    "task_instructions": {
        "retrieval.query": "query: ",
        "retrieval.passage": "passage: ",
        "text-matching": "",
    },
}
WIDE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 1,
    "vocab_size": 300,
}
# As transformers writes it, with its own names of tensors.
TRANSFORMERS = {
    "architectures": ["JinaEmbeddingsV3Model"],
    "dtype": "float32",
    "hidden_act": "gelu",
    "hidden_size": 36,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194,
    "model_type": "jina_embeddings_v3",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
    "type_vocab_size": 1,
    "vocab_size": 99,
}

PROMPTS = ["retrieval.query", "retrieval.passage"]
ADAPTED = "parametrizations.weight"
# From our names in `forward` to those of transformers.
NATIVE = [
    ("emb_ln", "embeddings.LayerNorm"),
    ("encoder.layers", "layers"),
    ("mixer.out_proj", "self_attn.o_proj"),
    ("norm1", "post_attention_layernorm"),
    ("norm2", "post_mlp_layernorm"),
]


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    tasks, rank = len(config.get("lora_adaptations", [])), config.get("lora_rank")
    head = config["architectures"][0]
    top = "roberta." if tasks or head.startswith("XLMRobertaFor") else ""
    named: dict[str, list[int]] = {}

    def table(name: str, rows: int) -> None:
        if tasks:
            named[f"{name}.{ADAPTED}.original"] = [rows, width]
            named[f"{name}.{ADAPTED}.0.lora_A"] = [tasks, rows, rank]
            named[f"{name}.{ADAPTED}.0.lora_B"] = [tasks, rank, width]
        else:
            named[f"{name}.weight"] = [rows, width]

    def linear(name: str, outputs: int, inputs: int) -> None:
        named[f"{name}.bias"] = [outputs]
        if tasks:
            named[f"{name}.{ADAPTED}.original"] = [outputs, inputs]
            named[f"{name}.{ADAPTED}.0.lora_A"] = [tasks, rank, inputs]
            named[f"{name}.{ADAPTED}.0.lora_B"] = [tasks, outputs, rank]
        else:
            named[f"{name}.weight"] = [outputs, inputs]

    def norm(name: str) -> None:
        named[f"{name}.weight"] = [width]
        named[f"{name}.bias"] = [width]

    table(f"{top}embeddings.word_embeddings", config["vocab_size"])
    if config.get("position_embedding_type") == "absolute":
        rows = config["max_position_embeddings"]
        named[f"{top}embeddings.position_embeddings.weight"] = [rows, width]
    table(f"{top}embeddings.token_type_embeddings", config["type_vocab_size"])
    norm(f"{top}emb_ln")
    for layer in range(config["num_hidden_layers"]):
        block = f"{top}encoder.layers.{layer}"
        linear(f"{block}.mixer.Wqkv", 3 * width, width)
        linear(f"{block}.mixer.out_proj", width, width)
        linear(f"{block}.mlp.fc1", inner, width)
        linear(f"{block}.mlp.fc2", width, inner)
        norm(f"{block}.norm1")
        norm(f"{block}.norm2")
    if head == "XLMRobertaForSequenceClassification":
        linear("classifier.dense", width, width)
        linear("classifier.out_proj", len(config["id2label"]), width)
    elif head == "XLMRobertaForMaskedLM":
        linear("lm_head.dense", width, width)
        norm("lm_head.layer_norm")
        named["lm_head.bias"] = [config["vocab_size"]]
    else:
        linear(f"{top}pooler.dense", width, width)
    if config["model_type"] == "jina_embeddings_v3":
        named = native(named, lambda shape: [[shape[0] // 3, *shape[1:]]] * 3)
    return named


def native(named: dict[str, Any], chunks: Any) -> dict[str, Any]:
    """Renames tensors as transformers does, and splits the fused QKV projection."""
    result = {}
    for name, tensor in named.items():
        for old, new in NATIVE:
            name = name.replace(old, new)
        parts = {name: tensor}
        if "mixer.Wqkv" in name:
            parts = {
                name.replace("mixer.Wqkv", f"self_attn.{part}_proj"): chunk
                for part, chunk in zip("qkv", chunks(tensor), strict=True)
            }
        result |= parts
    return result


def for_task(config: dict[str, Any], w: Weights, task: int | None) -> Weights:
    """The weights with the update of a task merged into them, as the published code does."""
    scale = config.get("lora_alpha", 1) / config.get("lora_rank", 4)
    merged = {}
    for name, tensor in w.items():
        stem, found, part = name.partition(f".{ADAPTED}.")
        if not found:
            merged[name] = tensor
        elif part == "original":
            if task is not None:
                a, b = (w[f"{stem}.{ADAPTED}.0.lora_{f}"][task] for f in "AB")
                product = a @ b if "embeddings" in stem else b @ a
                tensor = tensor + product * scale
            merged[f"{stem}.weight"] = tensor
    return merged


def encode(config: dict[str, Any], w: Weights, ids: Tensor) -> list[Tensor]:
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    top = "" if "embeddings.word_embeddings.weight" in w else "roberta."
    is_rotary = config.get("position_embedding_type", "rotary") == "rotary"
    x = w[f"{top}embeddings.word_embeddings.weight"][ids]
    x = x + w[f"{top}embeddings.token_type_embeddings.weight"][0]
    if not is_rotary:
        first = config["pad_token_id"] + 1
        table = w[f"{top}embeddings.position_embeddings.weight"]
        x = x + table[first : first + len(ids)]
    x = norm(w, f"{top}emb_ln", x, eps)
    hidden = [x]
    rope = config.get("rope_parameters", {})
    theta = rope.get("rope_theta", config.get("rotary_emb_base", 10000.0))
    for layer in range(config["num_hidden_layers"]):
        block = f"{top}encoder.layers.{layer}"
        q, k, v = (
            part.unflatten(1, (heads, -1))
            for part in linear(w, f"{block}.mixer.Wqkv", x).chunk(3, dim=1)
        )
        if is_rotary:
            q, k = rotate(q, theta), rotate(k, theta)
        mixed = linear(w, f"{block}.mixer.out_proj", attention(q, k, v))
        x = norm(w, f"{block}.norm1", x + mixed, eps)
        y = linear(w, f"{block}.mlp.fc2", gelu(linear(w, f"{block}.mlp.fc1", x)))
        x = norm(w, f"{block}.norm2", x + y, eps)
        hidden.append(x)
    return hidden


def forward(
    config: dict[str, Any], w: Weights, ids: Tensor, _types: Tensor
) -> dict[str, Any]:
    if config["model_type"] == "jina_embeddings_v3":
        w = fused(w)
    plain = for_task(config, w, None)
    hidden = encode(config, plain, ids)
    result: dict[str, Any] = {"hidden": hidden}
    for task in range(len(config.get("lora_adaptations", []))):
        merged = for_task(config, w, task)
        for layer, rows in enumerate(encode(config, merged, ids)):
            # A task must matter, or a reader that ignores it would pass.
            assert (rows - hidden[layer]).abs().max() > 0.05, (task, layer)
            result[f"task{task}.hidden.{layer}"] = rows
    first, eps = hidden[-1][:1], config["layer_norm_eps"]
    if "classifier.dense.weight" in plain:
        pooled = linear(plain, "classifier.dense", first).tanh()
        result["logits"] = linear(plain, "classifier.out_proj", pooled)
    if "lm_head.dense.weight" in plain:
        y = gelu(linear(plain, "lm_head.dense", hidden[-1]))
        y = norm(plain, "lm_head.layer_norm", y, eps)
        words = plain["roberta.embeddings.word_embeddings.weight"]
        result["logits"] = y @ words.T + plain["lm_head.bias"]
    return result


def fused(w: Weights) -> Weights:
    """From the names of transformers to ours."""
    result = {}
    for name, tensor in w.items():
        if "self_attn.q_proj" in name:
            parts = [w[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            tensor = torch.cat(parts)
            name = name.replace("self_attn.q_proj", "mixer.Wqkv")
        elif "self_attn.k_proj" in name or "self_attn.v_proj" in name:
            continue
        for ours, theirs in NATIVE:
            name = name.replace(theirs, ours)
        # `layers` is a part of `encoder.layers`.
        result[name.replace("encoder.encoder.", "encoder.")] = tensor
    return result


def check(config: dict[str, Any]) -> None:
    """With positions in a table, the encoder is XLM-RoBERTa under other names; with RoPE,
    transformers has it since 5.23. Where transformers has it, both must agree, for each task."""
    is_rotary = config["position_embedding_type"] == "rotary"
    if is_rotary and not importlib.util.find_spec(
        "transformers.models.jina_embeddings_v3"
    ):
        print("transformers before 5.23 has no jina_embeddings_v3: not checked")
        return
    chance = torch.Generator().manual_seed(1)
    w = {
        name: torch.randn(shape, generator=chance) / shape[-1] ** 0.5
        for name, shape in shapes(config).items()
        if not name.startswith("classifier")
    }
    ids = torch.randint(5, config["vocab_size"], (30,), generator=chance)
    for task in [None, *range(len(config.get("lora_adaptations", [])))]:
        merged = for_task(config, w, task)
        ours = encode(config, {n: t.double() for n, t in merged.items()}, ids)[-1]
        merged = {n.removeprefix("roberta."): t for n, t in merged.items()}
        sizes = {
            key: config[key]
            for key in [
                *("vocab_size", "hidden_size", "num_hidden_layers", "type_vocab_size"),
                *("num_attention_heads", "intermediate_size", "layer_norm_eps"),
                *("max_position_embeddings", "pad_token_id"),
            ]
        }
        if is_rotary:
            from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

            theta = config["rotary_emb_base"]
            rope = {"rope_type": "default", "rope_theta": theta}
            reference = JinaEmbeddingsV3Config(**sizes, rope_parameters=rope)
            kind, given = JinaEmbeddingsV3Model, merged
        else:
            reference, kind = XLMRobertaConfig(**sizes), XLMRobertaModel
            given = classic(merged)
        with tempfile.TemporaryDirectory() as directory:
            reference.save_pretrained(directory)
            save_file(
                {n: t.contiguous().clone() for n, t in given.items()},
                Path(directory) / "model.safetensors",
                metadata={"format": "pt"},
            )
            model, info = kind.from_pretrained(
                directory,
                attn_implementation="eager",
                dtype=torch.float64,
                output_loading_info=True,
            )
        missing = {n for n in info["missing_keys"] if not n.startswith("pooler")}
        assert not missing and not info["unexpected_keys"], info
        with torch.inference_mode(), all_in_float64():
            theirs = model.eval()(ids[None]).last_hidden_state[0]
        # No closer: transformers computes angles in float32.
        assert torch.allclose(theirs, ours, atol=1e-5, rtol=0), (task, theirs - ours)


def classic(w: Weights) -> Weights:
    """From the names of this layout to those of XLM-RoBERTa."""
    names = [
        ("emb_ln", "embeddings.LayerNorm"),
        ("encoder.layers", "encoder.layer"),
        ("mixer.out_proj", "attention.output.dense"),
        ("norm1", "attention.output.LayerNorm"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
        ("norm2", "output.LayerNorm"),
    ]
    result = {}
    for name, tensor in w.items():
        for old, new in names:
            name = name.replace(old, new)
        parts = {name: tensor}
        if "mixer.Wqkv" in name:
            parts = {
                name.replace("mixer.Wqkv", f"attention.self.{part}"): chunk
                for part, chunk in zip(["query", "key", "value"], tensor.chunk(3))
            }
        result |= parts
    return result


def rules(config: dict[str, Any]) -> list[Rule]:
    width = config["hidden_size"]
    return [
        ("Wqkv.*(weight|original)$", 1.4, 0.0),
        ("embeddings.*lora_A", -0.4, 0.0),
        ("embeddings.*lora_B", -0.8, 0.0),
        ("lora_A", -((3 / width) ** 0.5), 0.0),
        ("lora_B", -0.4, 0.0),
    ]


VARIANTS = [
    Variant("flash-tiny", 361, None, ROTARY | {"num_hidden_layers": 3}, LONG_LENGTHS),
    Variant("flash-sequence", 362, None, RERANKER, HEAD_LENGTHS),
    Variant(
        "flash-mlm", 363, None, changed(ROTARY, "XLMRobertaForMaskedLM"), HEAD_LENGTHS
    ),
    Variant("flash-transformers", 364, None, TRANSFORMERS, HEAD_LENGTHS),
    Variant("flash-tasks", 365, None, ROTARY | TASKS, HEAD_LENGTHS),
    Variant("flash-tasks-large", 366, None, ROTARY | TASKS | WIDE, WIDE_LENGTHS),
]


@torch.inference_mode()
def write_embedder(out: Path) -> None:
    """jina-embeddings-v3's files around a tiny encoder: the name of a prompt is that of a task."""
    directory = empty_dir(out / "task-embed-tasks")
    tokenizer = tiny.unigram()
    tokenizer.save_pretrained(directory)
    config = ROTARY | TASKS | tiny.SIZES | {"vocab_size": len(tokenizer)}
    write_json(directory / "config.json", config)
    modules = [
        {"idx": 0, "name": "transformer", "path": "", "kwargs": ["task"]},
        {"idx": 1, "name": "pooler", "path": "1_Pooling"},
        {"idx": 2, "name": "normalizer", "path": "2_Normalize"},
    ]
    kinds = [
        "custom_st.Transformer",
        "sentence_transformers.models.Pooling",
        "sentence_transformers.models.Normalize",
    ]
    modules = [module | {"type": kind} for module, kind in zip(modules, kinds)]
    write_json(directory / "modules.json", modules)
    (directory / "1_Pooling").mkdir()
    pooling = {
        "word_embedding_dimension": tiny.HIDDEN,
        "pooling_mode_mean_tokens": True,
    }
    write_json(directory / "1_Pooling" / "config.json", pooling)
    # The last task has no prompt here: its instruction in config.json is its prompt.
    prompts = {name: TASKS["task_instructions"][name] for name in PROMPTS}
    settings = {"prompts": prompts, "default_prompt_name": None}
    write_json(directory / "config_sentence_transformers.json", settings)

    seed = 367
    specs = {n: spread(n, s, rules(config)) for n, s in shapes(config).items()}
    write_tensors(directory / "tensors.json", seed, specs)
    w = {n: torch.tensor(v).double() for n, v in weights(seed, specs).items()}
    cases, embeddings = [], []
    for task, name in [(None, None), *enumerate(config["lora_adaptations"])]:
        prompt = config["task_instructions"].get(name, "")
        merged = for_task(config, w, task)
        for text in TEXTS:
            ids = tokenizer(prompt + text, truncation=True)["input_ids"]
            pooled = encode(config, merged, torch.tensor(ids))[-1].mean(0)
            cases.append({"text": text, "prompt_name": name, "ids": ids})
            embeddings.append((pooled / pooled.norm()).float().numpy())
    write_json_lines(directory / "golden.json", cases)
    save_numpy({"embeddings": np.stack(embeddings)}, directory / "golden.safetensors")


def make(out: Path, _work: Path) -> None:
    check(RERANKER)
    check(ROTARY)
    check(ROTARY | TASKS)
    for variant in VARIANTS:
        variant.rules = rules(variant.config)
        write_plain(out, variant, shapes(variant.config), forward)
    write_embedder(out)
