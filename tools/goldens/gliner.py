"""Tiny GLiNER models with each encoder and head, run by the gliner package: every stage of the forward
pass in float64, and the entities that the package finds with every option.

The package is not in requirements.txt, because it needs a virtual environment of its own:
`pip install gliner==0.2.29` beside the versions there.
"""

import json
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This file has the package's name.
HERE = str(Path(__file__).resolve().parent)
sys.path = [path for path in sys.path if str(Path(path or ".").resolve()) != HERE]
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gliner import GLiNER  # noqa: E402
from gliner.config import UniEncoderSpanConfig, UniEncoderTokenConfig  # noqa: E402
from gliner.model import UniEncoderSpanGLiNER, UniEncoderTokenGLiNER  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

sys.path.append(HERE)
import formula  # noqa: E402
import tiny  # noqa: E402
from files import empty_dir, write_json_sections  # noqa: E402
from synthetic import all_in_float64  # noqa: E402

GOLDENS = Path(HERE).parents[1] / "crates" / "testkit" / "goldens"

# The text of the package's README.
RONALDO = (
    "Cristiano Ronaldo dos Santos Aveiro (Portuguese pronunciation: [kɾiʃˈtjɐnu ʁɔˈnaldu]; born 5 "
    "February 1985) is a Portuguese professional footballer who plays as a forward for and captains "
    "both Saudi Pro League club Al Nassr and the Portugal national team."
)
LABELS = ["person", "award", "date", "competitions", "teams"]
TEXTS = [
    RONALDO,
    "Anna-Maria lives in Paris, not in snake_case.",
    "",
    "  \t ",
    "José was eating in São Paulo — 東京!",
    # A combining mark is a word of its own in Python's classes.
    "Jose\u0301 नमस्ते, x\x1cy ½ a--b _c-d_",
    "one",
    # Longer than max_len.
    " ".join("amento"[i % 6] for i in range(60)) + " the end.",
]
# The threshold of each call is a quantile of the model's scores, so that some entities are found and
# some are not.
OPTIONS = [
    (0.9, {"flat_ner": True, "multi_label": False}),
    (0.85, {"flat_ner": True, "multi_label": True}),
    (0.85, {"flat_ner": False, "multi_label": False}),
    (0.92, {"flat_ner": False, "multi_label": True}),
]

DEBERTA = {
    "model_type": "deberta-v2",
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "max_position_embeddings": 200,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 16,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
}
MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "max_position_embeddings": 300,
    "global_attn_every_n_layers": 2,
    "local_attention": 16,
    "pad_token_id": 0,
}
BERT = {
    "model_type": "bert",
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "max_position_embeddings": 300,
}


@dataclass
class Variant:
    name: str
    seed: int
    encoder: dict[str, Any]
    fields: dict[str, Any]
    token_level: bool = False
    unigram: bool = True


VARIANTS = [
    # Like the models of its authors: a span head over words that an LSTM has read.
    Variant(
        "gliner-deberta",
        1401,
        DEBERTA,
        {"hidden_size": 36},
    ),
    # The encoder's states are projected; no LSTM; the label's own token; narrow spans.
    Variant(
        "gliner-modernbert",
        1402,
        MODERNBERT,
        {
            "hidden_size": 40,
            "num_rnn_layers": 0,
            "embed_ent_token": False,
            "max_width": 3,
        },
        unigram=False,
    ),
    # Two layers of the LSTM, of an odd size; the last token of each word.
    Variant(
        "gliner-token",
        1403,
        DEBERTA,
        {"hidden_size": 42, "num_rnn_layers": 2, "subtoken_pooling": "last"},
        token_level=True,
    ),
    Variant(
        "gliner-token-bert",
        1404,
        BERT,
        {"hidden_size": 36, "num_rnn_layers": 0},
        token_level=True,
        unigram=False,
    ),
    # All tokens of a word, pooled.
    Variant(
        "gliner-mean",
        1407,
        DEBERTA,
        {"hidden_size": 36, "subtoken_pooling": "mean"},
    ),
    Variant(
        "gliner-max",
        1406,
        BERT,
        {"hidden_size": 40, "num_rnn_layers": 0, "subtoken_pooling": "max"},
        token_level=True,
        unigram=False,
    ),
]


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDENS
    for variant in VARIANTS:
        directory = empty_dir(out / variant.name)
        build(variant).save_pretrained(directory, safe_serialization=True)
        formula.replace_weights(directory, variant.seed)
        with formula.materialised(directory) as copy:
            write_golden(directory, copy)


def build(variant: Variant):
    tokenizer = tiny.unigram() if variant.unigram else tiny.wordpiece(lower_case=False)
    # The package cuts words off at `max_len`, and tokens only here.
    tokenizer.model_max_length = 250
    tokenizer.add_tokens(["<<ENT>>", "<<SEP>>"], special_tokens=True)
    encoder = variant.encoder | {"vocab_size": len(tokenizer)}
    fields = {"max_len": 50, "max_width": 5} | variant.fields
    fields |= {"class_token_index": len(tokenizer) - 2, "vocab_size": len(tokenizer)}
    kind = UniEncoderTokenConfig if variant.token_level else UniEncoderSpanConfig
    config = kind(
        model_name="tiny", name=variant.name, encoder_config=encoder, **fields
    )
    cls = UniEncoderTokenGLiNER if variant.token_level else UniEncoderSpanGLiNER
    return cls(config, tokenizer=tokenizer, backbone_from_pretrained=False)


@torch.inference_mode()
def write_golden(directory: Path, copy: Path) -> None:
    model = GLiNER.from_pretrained(str(copy), local_files_only=True)
    tensors = stages(model)
    # The score of a word alone is the least of a token head's three.
    logits = np.concatenate(
        [t.min(axis=1) for name, t in tensors.items() if name.endswith("logits")]
    )
    scores = np.sort(1 / (1 + np.exp(-logits.astype(np.float64))))
    calls = [flags | {"threshold": threshold(scores, at)} for at, flags in OPTIONS]
    cases = []
    counts = np.zeros(len(calls), dtype=int)
    for text in TEXTS:
        found = [model.predict_entities(text, LABELS, **options) for options in calls]
        counts += [len(entities) for entities in found]
        cases.append({"text": text, "found": found})
    print(directory.name, "entities:", counts)
    assert (counts > 5).all() and len(set(counts)) > 2, counts
    save_file(tensors, directory / "golden.safetensors")
    write_json_sections(
        directory / "golden.json",
        {"labels": LABELS, "options": calls, "cases": cases},
    )


def word_ranges(mask: np.ndarray) -> np.ndarray:
    """The first token of each word, and the one after its last. A mask counts words from 1."""
    tokens = [np.flatnonzero(mask == word) for word in range(1, mask.max() + 1)]
    return np.array([(at[0], at[-1] + 1) for at in tokens], dtype=np.uint32)


def threshold(scores: np.ndarray, quantile: float) -> float:
    """The middle of the widest gap between scores near a quantile, so that rounding decides nothing."""
    at = int(quantile * len(scores))
    near = scores[max(at - 20, 0) : at + 20]
    widest = np.diff(near).argmax()
    return float(f"{near[widest : widest + 2].mean():.6f}")


def stages(model) -> dict[str, np.ndarray]:
    """Every stage of the texts that have words, in float64."""
    tensors: dict[str, np.ndarray] = {}
    core = model.model
    extract = core._extract_prompt_features_and_word_embeddings
    seen: dict[str, torch.Tensor] = {}

    def spy(tokens, *args, **kwargs):
        labels, labels_mask, words, mask = extract(tokens, *args, **kwargs)
        seen.update(tokens=tokens[0], labels=labels[0], words=words[0])
        return labels, labels_mask, words, mask

    core._extract_prompt_features_and_word_embeddings = spy
    if hasattr(core, "rnn"):
        core.rnn.register_forward_hook(lambda _m, _i, y: seen.update(lstm=y[0]))
    core.double()
    with all_in_float64():
        for i, text in enumerate(TEXTS):
            if not text.strip():
                continue
            prepared = model.prepare_batch([text], LABELS)
            batch = model.collate_batch(prepared["input_x"], prepared["entity_types"])
            logits = model.run_batch(batch)[0][0]
            words = len(batch["tokens"][0])
            if logits.shape[-1] == 3:
                seen["logits"] = logits[:words].reshape(-1, 3)
            else:
                # Spans beyond the last word are not scored.
                width = logits.shape[1]
                rows = [
                    logits[first, k]
                    for first in range(words)
                    for k in range(min(width, words - first))
                ]
                seen["logits"] = torch.stack(rows).reshape(-1, 1)
            mask = batch["words_mask"][0]
            assert mask.max() == words, "a word without tokens"
            tensors[f"{i}.ids"] = batch["input_ids"][0].numpy().astype(np.uint32)
            tensors[f"{i}.word_ranges"] = word_ranges(mask.numpy())
            for name, value in seen.items():
                tensors[f"{i}.{name}"] = value.to(torch.float32).contiguous().numpy()
    core.float()
    return tensors


if __name__ == "__main__":
    main()
