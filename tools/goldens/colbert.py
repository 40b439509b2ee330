"""Tiny late-interaction models: ColBERT in the layouts of Stanford, PyLate and
sentence-transformers."""

import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from transformers import (
    AddedToken,
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import formula
import tiny
from files import empty_dir, write_json, write_json_sections

DIM = 16
QUERY_LENGTH = 12
DOCUMENT_LENGTH = 20

QUERIES = [
    "where is the cat?",
    "",
    "Caf\u00e9 d\u00e9j\u00e0 vu",
    "a query of many more tokens than the twelve that it may have, and so cut",
    "[MASK] me",
]
DOCUMENTS = [
    "The cat sat on the mat.",
    "",
    "?!... ,,, ;-)",
    "A man is eating food; \u65e5\u672c (not in the vocabulary) & more!",
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard at all.",
    "the cat [SEP] the dog",
]


@dataclass
class Rules:
    """The options that each layout stores in its own way."""

    query_marker: str
    document_marker: str
    skiplist: list[str]
    expand: bool = True
    attend: bool = False


def make(out: Path, _work: Path) -> None:
    punctuation = list(string.punctuation)
    stanford = "[unused0]", "[unused1]"
    directory = out / "task-colbert"
    save_stanford(directory, 161, attend=False, mask_punctuation=True)
    write_golden(directory, Rules(*stanford, punctuation))
    directory = out / "task-colbert-attend"
    save_stanford(directory, 162, attend=True, mask_punctuation=False)
    write_golden(directory, Rules(*stanford, [], attend=True))

    pylate = "[Q] ", "[D] "
    skiplist = [".", ",", "the", "\u65e5"]  # The last is not in the vocabulary: it must not become [UNK].
    directory = out / "task-colbert-pylate"
    save_pylate(directory, 163, {"skiplist_words": skiplist})
    write_golden(directory, Rules(*pylate, skiplist[:-1]))
    # The same model as sentence-transformers 6 saves it: masking and L2-normalize are modules.
    native = out / "task-colbert-native"
    save_native(directory, native)
    write_golden(native, Rules(*pylate, skiplist[:-1]))
    # No expansion and no skiplist in the files: the default skiplist is the punctuation.
    directory = out / "task-colbert-pylate-short"
    save_pylate(directory, 164, {"do_query_expansion": False})
    write_golden(directory, Rules(*pylate, punctuation, expand=False))
    directory = out / "task-colbert-pylate-attend"
    changes = {"attend_to_expansion_tokens": True, "skiplist_words": []}
    save_pylate(directory, 165, changes)
    write_golden(directory, Rules(*pylate, [], attend=True))
    # ModernBERT, with windows narrower than queries and documents; expansion tokens are no keys.
    directory = out / "task-colbert-modernbert"
    tokenizer = tiny.byte_level(False)
    save_pylate(directory, 166, {"skiplist_words": [".", ","]}, modernbert, tokenizer)
    write_golden(directory, Rules(*pylate, [".", ","]))


def bert(words: int) -> BertModel:
    return BertModel(BertConfig(vocab_size=words, **tiny.BERT))


def modernbert(words: int) -> ModernBertModel:
    special = {"pad_token_id": 1, "bos_token_id": 0, "cls_token_id": 0}
    special |= {"eos_token_id": 2, "sep_token_id": 2}
    sizes = tiny.SIZES | {"num_hidden_layers": 3, "max_position_embeddings": 64}
    config = ModernBertConfig(vocab_size=words, local_attention=8, **special, **sizes)
    return ModernBertModel(config)


def wordpiece(more: list[str]) -> BertTokenizer:
    return tiny.wordpiece(more=[*string.punctuation, *more])


def save_stanford(
    directory: Path, seed: int, attend: bool, mask_punctuation: bool
) -> None:
    empty_dir(directory)
    # Ordinary tokens of the vocabulary that no text can spell; the code inserts their ids.
    tokenizer = wordpiece(["[unused0]", "[unused1]"])
    encoder = BertModel(BertConfig(vocab_size=len(tokenizer), **tiny.BERT))
    encoder.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    path = directory / formula.WEIGHTS
    shapes = {
        f"bert.{name}": list(value.shape) for name, value in load_file(path).items()
    }
    path.unlink()
    shapes["linear.weight"] = [DIM, tiny.HIDDEN]
    formula.write(directory, seed, formula.uneven(shapes, {}))

    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | {"architectures": ["HF_ColBERT"]})
    metadata = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_token": "[Q]",
        "doc_token": "[D]",
        "attend_to_mask_tokens": attend,
        "interaction": "colbert",
        "dim": DIM,
        "doc_maxlen": DOCUMENT_LENGTH,
        "mask_punctuation": mask_punctuation,
        "query_maxlen": QUERY_LENGTH,
        "similarity": "cosine",
    }
    write_json(directory / "artifact.metadata", metadata)


def save_pylate(
    directory: Path,
    seed: int,
    changes: dict,
    model: Callable[[int], PreTrainedModel] = bert,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    empty_dir(directory)
    tokenizer = tokenizer or wordpiece([])
    tokenizer.add_tokens([AddedToken("[Q] "), AddedToken("[D] ")])
    encoder = model(len(tokenizer))
    encoder.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    formula.replace_weights(directory, seed)
    dense = directory / "1_Dense"
    dense.mkdir()
    shapes = {"linear.weight": [DIM, tiny.HIDDEN]}
    formula.write(dense, seed, formula.uneven(shapes, {}))
    identity = "torch.nn.modules.linear.Identity"
    write_json(
        dense / "config.json",
        {
            "in_features": tiny.HIDDEN,
            "out_features": DIM,
            "bias": False,
            "activation_function": identity,
        },
    )
    kinds = [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Dense", "pylate.models.Dense.Dense"),
    ]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(kinds)
    ]
    write_json(directory / "modules.json", modules)
    transformer = {"max_seq_length": DOCUMENT_LENGTH - 1, "do_lower_case": False}
    write_json(directory / "sentence_bert_config.json", transformer)
    config = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": QUERY_LENGTH,
        "document_length": DOCUMENT_LENGTH,
        "attend_to_expansion_tokens": False,
    }
    write_json(directory / "config_sentence_transformers.json", config | changes)


def save_native(source: Path, directory: Path) -> None:
    empty_dir(directory)
    with formula.materialised(source) as copy:
        model = MultiVectorEncoder(str(copy), device="cpu", local_files_only=True)
        model.save(str(directory), create_model_card=False)
    for path in sorted(directory.rglob(formula.WEIGHTS)):
        path.unlink()
        original = source / path.parent.relative_to(directory) / formula.FORMULA
        (path.parent / formula.FORMULA).write_text(original.read_text())


@torch.inference_mode()
def write_golden(directory: Path, rules: Rules) -> None:
    with formula.materialised(directory) as copy:
        tokenizer = AutoTokenizer.from_pretrained(copy)
        encoder, projection = load(copy)
        queries = [
            embed(encoder, projection, *query(tokenizer, rules, text))
            for text in QUERIES
        ]
        documents = [
            embed(encoder, projection, *document(tokenizer, rules, text))
            for text in DOCUMENTS
        ]
        # Two independent implementations must agree.
        other = MultiVectorEncoder(str(copy), device="cpu", local_files_only=True)
        for text, (_, expected) in zip(QUERIES, queries, strict=True):
            actual = other.encode_query(text, convert_to_numpy=True)
            np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=text)
        for text, (_, expected) in zip(DOCUMENTS, documents, strict=True):
            actual = other.encode_document(text, convert_to_numpy=True)
            np.testing.assert_allclose(actual, expected, atol=1e-5, err_msg=text)
    scores = [
        [(q @ d.T).max(axis=1).sum() for _, d in documents] for _, q in queries
    ]
    arrays = {"scores": np.array(scores, np.float32)}
    sections = {"rules": rules.__dict__}
    for name, texts, results in [
        ("queries", QUERIES, queries),
        ("documents", DOCUMENTS, documents),
    ]:
        sections[name] = [
            {"text": text, **inputs, "vectors": len(vectors)}
            for text, (inputs, vectors) in zip(texts, results, strict=True)
        ]
        arrays[name] = np.concatenate([vectors for _, vectors in results])
    write_json_sections(directory / "golden.json", sections)
    save_file(arrays, directory / "golden.safetensors")


def load(copy: Path) -> tuple[PreTrainedModel, torch.Tensor]:
    tensors = load_file(copy / formula.WEIGHTS)
    if "linear.weight" in tensors:
        projection = tensors.pop("linear.weight")
        tensors = {
            name.removeprefix("bert."): value for name, value in tensors.items()
        }
    else:
        projection = load_file(copy / "1_Dense" / formula.WEIGHTS)["linear.weight"]
    config = AutoConfig.from_pretrained(copy)
    kind = ModernBertModel if config.model_type == "modernbert" else BertModel
    encoder = kind(config).eval()
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    encoder.load_state_dict(state)
    return encoder, torch.from_numpy(projection)


def marked(
    tokenizer: PreTrainedTokenizerBase, text: str, marker: str, length: int
) -> list[int]:
    ids = tokenizer(text, truncation=True, max_length=length - 1)["input_ids"]
    return [ids[0], tokenizer.convert_tokens_to_ids(marker), *ids[1:]]


def query(tokenizer: PreTrainedTokenizerBase, rules: Rules, text: str):
    ids = marked(tokenizer, text, rules.query_marker, QUERY_LENGTH)
    more = QUERY_LENGTH - len(ids) if rules.expand else 0
    attended = [1] * len(ids) + [int(rules.attend)] * more
    ids += [tokenizer.mask_token_id] * more
    return ids, attended, [1] * len(ids)


def document(tokenizer: PreTrainedTokenizerBase, rules: Rules, text: str):
    ids = marked(tokenizer, text, rules.document_marker, DOCUMENT_LENGTH)
    skipped = {tokenizer.convert_tokens_to_ids(word) for word in rules.skiplist}
    assert tokenizer.unk_token_id not in skipped
    kept = [int(token not in skipped) for token in ids]
    return ids, [1] * len(ids), kept


def embed(encoder, projection, ids: list[int], attended: list[int], kept: list[int]):
    hidden = encoder(
        input_ids=torch.tensor([ids]), attention_mask=torch.tensor([attended])
    ).last_hidden_state[0]
    vectors = torch.nn.functional.normalize(hidden @ projection.T, dim=-1)
    inputs = {"ids": ids, "attended": attended, "kept": kept}
    return inputs, vectors[torch.tensor(kept, dtype=torch.bool)].numpy()
