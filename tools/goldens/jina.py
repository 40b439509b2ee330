"""JinaBERT v2: BERT with ALiBi and gated MLPs, and its variant that normalizes queries and keys.
Our own implementation."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu

from absolute import LABELS, changed
from plain import Weights, attention, linear, norm
from synthetic import HEAD_LENGTHS, LONG_LENGTHS, WIDE_LENGTHS, Variant, write_plain

# As in jina-embeddings-v2-base-en, which declares `bert`.
JINA = {
    "_name_or_path": "jinaai/jina-bert-implementation",
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "torch",
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    },
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "model_max_length": 8192,
    "model_type": "bert",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "transformers_version": "4.26.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 99,
}
# As in jina-embeddings-v2-base-code: only the names of files and tensors distinguish the two.
CODE = JINA | {
    "_name_or_path": "jinaai/jina-bert-v2-qk-post-norm",
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-v2-qk-post-norm--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel",
    },
}
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 500,
}


def shapes(config: dict[str, Any], top: str) -> dict[str, list[int]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    code = config["_name_or_path"].endswith("qk-post-norm")
    named: dict[str, list[int]] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        named[f"{name}.weight"] = [outputs, inputs]
        named[f"{name}.bias"] = [outputs]

    def norm(name: str) -> None:
        named[f"{name}.weight"] = [width]
        named[f"{name}.bias"] = [width]

    named[f"{top}embeddings.word_embeddings.weight"] = [config["vocab_size"], width]
    named[f"{top}embeddings.token_type_embeddings.weight"] = [2, width]
    norm(f"{top}embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        block = f"{top}encoder.layer.{layer}"
        for part in ["query", "key", "value"]:
            linear(f"{block}.attention.self.{part}", width, width)
        linear(f"{block}.attention.output.dense", width, width)
        norm(f"{block}.attention.output.LayerNorm")
        if code:
            norm(f"{block}.attention.self.layer_norm_q")
            norm(f"{block}.attention.self.layer_norm_k")
            norm(f"{block}.layer_norm_1")
            norm(f"{block}.layer_norm_2")
            named[f"{block}.mlp.up_gated_layer.weight"] = [2 * inner, width]
            linear(f"{block}.mlp.down_layer", width, inner)
        else:
            named[f"{block}.mlp.gated_layers.weight"] = [2 * inner, width]
            linear(f"{block}.mlp.wo", width, inner)
            norm(f"{block}.mlp.layernorm")
    if config["architectures"][0] == "JinaBertForMaskedLM" and top:
        linear("cls.predictions.transform.dense", width, width)
        norm("cls.predictions.transform.LayerNorm")
        named["cls.predictions.bias"] = [config["vocab_size"]]
    else:
        linear(f"{top}pooler.dense", width, width)
    if config["architectures"][0] == "JinaBertForSequenceClassification":
        linear("classifier", len(config["id2label"]), width)
    return named


def slopes(heads: int) -> list[float]:
    """Powers of 2^(-8/heads); if heads is not a power of two, those of the power below, then every
    second of the power above."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return own if power == heads else own + slopes(2 * power)[0::2][: heads - power]


def forward(
    config: dict[str, Any], w: Weights, ids: Tensor, types: Tensor
) -> dict[str, Any]:
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]
    act = relu if config["feed_forward_type"] == "reglu" else gelu
    top = "" if "embeddings.LayerNorm.weight" in w else "bert."
    words = w[f"{top}embeddings.word_embeddings.weight"]
    x = words[ids] + w[f"{top}embeddings.token_type_embeddings.weight"][types]
    x = norm(w, f"{top}embeddings.LayerNorm", x, eps)
    place = torch.arange(len(ids)).double()
    distance = (place[:, None] - place[None, :]).abs()
    bias = -torch.tensor(slopes(heads)).double()[:, None, None] * distance
    hidden = [x]
    for layer in range(config["num_hidden_layers"]):
        block = f"{top}encoder.layer.{layer}"
        q, k, v = (
            linear(w, f"{block}.attention.self.{part}", x)
            for part in ["query", "key", "value"]
        )
        code = f"{block}.layer_norm_1.weight" in w
        if code:
            # Over the whole width, before splitting into heads.
            q = norm(w, f"{block}.attention.self.layer_norm_q", q, eps)
            k = norm(w, f"{block}.attention.self.layer_norm_k", k, eps)
        mixed = attention(*(part.unflatten(1, (heads, -1)) for part in (q, k, v)), bias)
        mixed = linear(w, f"{block}.attention.output.dense", mixed)
        mixed = norm(w, f"{block}.attention.output.LayerNorm", mixed + x, eps)
        if code:
            # Adds the input a second time. Here the gate is the second half, below the first.
            x = norm(w, f"{block}.layer_norm_1", x + mixed, eps)
            up, gate = linear(w, f"{block}.mlp.up_gated_layer", x).chunk(2, dim=1)
            y = linear(w, f"{block}.mlp.down_layer", up * act(gate))
            x = norm(w, f"{block}.layer_norm_2", x + y, eps)
        else:
            gate, up = linear(w, f"{block}.mlp.gated_layers", mixed).chunk(2, dim=1)
            y = linear(w, f"{block}.mlp.wo", act(gate) * up)
            x = norm(w, f"{block}.mlp.layernorm", y + mixed, eps)
        hidden.append(x)
    result: dict[str, Any] = {"hidden": hidden}
    if f"{top}pooler.dense.weight" in w:
        result["pooler"] = linear(w, f"{top}pooler.dense", x[:1]).tanh()
    if "classifier.weight" in w:
        result["logits"] = linear(w, "classifier", result["pooler"])
    if "cls.predictions.bias" in w:
        y = gelu(linear(w, "cls.predictions.transform.dense", x))
        y = norm(w, "cls.predictions.transform.LayerNorm", y, eps)
        result["logits"] = y @ words.T + w["cls.predictions.bias"]
    return result


VARIANTS = [
    ("", Variant("jina-tiny", 321, None, JINA, LONG_LENGTHS)),
    (
        "",
        Variant(
            "jina-eight-heads",
            322,
            None,
            changed(JINA, "JinaBertModel", hidden_size=40, num_attention_heads=8),
            HEAD_LENGTHS,
        ),
    ),
    (
        "bert.",
        Variant(
            "jina-mlm", 323, None, JINA | {"feed_forward_type": "reglu"}, HEAD_LENGTHS
        ),
    ),
    (
        "bert.",
        Variant(
            "jina-sequence",
            324,
            None,
            changed(JINA, "JinaBertForSequenceClassification", **LABELS),
            HEAD_LENGTHS,
        ),
    ),
    ("", Variant("jina-code-tiny", 325, None, CODE, LONG_LENGTHS)),
    ("", Variant("jina-base", 326, None, JINA | BASE, WIDE_LENGTHS)),
    ("", Variant("jina-code-base", 327, None, CODE | BASE, WIDE_LENGTHS)),
]


def make(out: Path, _work: Path) -> None:
    for top, variant in VARIANTS:
        write_plain(out, variant, shapes(variant.config, top), forward)
