"""Tiny tokenizers as decoders have them: Qwen's byte-level BPE, and Llama's BPE with byte
fallback."""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from files import write_json
from tiny import CORPUS, vocab_and_merges

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
LEARNT = [
    *CORPUS,
    *[PREFIX, SUFFIX, f"<Instruct>: {TASK}\n<Query>: \n<Document>: ", "yes\nno"] * 4,
    f"Instruct: {TASK}\nQuery:",
    "query: passage: ",
]

# Qwen's pre-tokenizer: contractions, letters, single digits, punctuation, line ends, spaces.
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
END = "<|endoftext|>"
QWEN_SPECIAL = [END, "<|im_start|>", "<|im_end|>"]
# Added tokens that are not special: decoding keeps them.
QWEN_ADDED = ["<think>", "</think>"]


def qwen(directory: Path, appends_end: bool, limit: int) -> None:
    """tokenizer.json and tokenizer_config.json; an embedder's post-processor appends `END` to a
    text."""
    bare = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = bare
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(LEARNT, trainer)
    vocab, merges = vocab_and_merges(trained)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = bare
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in QWEN_SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in QWEN_ADDED])
    whole = processors.ByteLevel(trim_offsets=False, use_regex=False)
    if appends_end:
        ends = processors.TemplateProcessing(
            single=f"$A {END}",
            pair=f"$A {END} $B {END}",
            special_tokens=[(END, tokenizer.token_to_id(END))],
        )
        whole = processors.Sequence([whole, ends])
    tokenizer.post_processor = whole
    save(tokenizer, directory)
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": limit,
            "pad_token": END,
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )


def llama(directory: Path, appends_end: bool, limit: int) -> None:
    """Pieces with U+2581 for a space, and `<s>` at the start of every text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator(LEARNT, trainer)
    pieces, merges = vocab_and_merges(trained)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    order = sorted(pieces, key=pieces.get)
    # The order of published vocabularies: special tokens, bytes, merged pieces, single characters.
    made = [piece for piece in order if len(piece) > 1]
    single = [piece for piece in order if len(piece) == 1]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *made, *single]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t in ["<unk>", "<s>", "</s>"]]
    )
    end = " </s>" if appends_end else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"<s> $A{end}",
        pair=f"<s> $A{end} <s> $B{end}",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    save(tokenizer, directory)
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": appends_end,
            "bos_token": "<s>",
            "clean_up_tokenization_spaces": False,
            "eos_token": "</s>",
            "model_max_length": limit,
            "pad_token": "</s>",
            # Llama's own class treats the text after a special token in its own way; later Llamas
            # name this class.
            "tokenizer_class": "LlamaTokenizer"
            if appends_end
            else "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
        },
    )


def gemma(directory: Path, appends_end: bool, limit: int) -> None:
    """The same under a class that leaves tokenizer.json as it is: for Gemma's model types
    transformers would choose a class that changes it."""
    llama(directory, appends_end, limit)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    write_json(path, config | {"tokenizer_class": "PreTrainedTokenizerFast"})


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """ASCII, like all JSON here, and compact, which halves its size."""
    text = json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":"))
    (directory / "tokenizer.json").write_text(text + "\n", encoding="ascii")
