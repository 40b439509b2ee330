"""Tiny tokenizers of the kinds that encoders use, and configs of tiny models with them."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertTokenizer,
    DistilBertTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from sentence import WORDS, vocabulary

HIDDEN = 32
MAX_TOKENS = 24  # Fewer than the positions, to detect a reader that ignores the limit.

SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
# RoBERTa's positions start at pad_token_id + 1.
BERT = SIZES | {"max_position_embeddings": 32}
DISTILBERT = {
    "dim": HIDDEN,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 32,
}
ROBERTA = SIZES | {
    "max_position_embeddings": 34,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}

CORPUS = [
    "The cat sat on the mat and the dog sat on the cat.",
    "Anna lives in Paris; Jos\u00e9 was born in S\u00e3o Paulo, Z\u00fcrich is not in Japan.",
    "A man is eating food, and they said that it was well made.",
    "caf\u00e9 na\u00efve d\u00e9j\u00e0 vu \u65e5\u672c\u8a9e \u6771\u4eac \u041c\u043e\u0441\u043a\u0432\u0430",
    "hello world, this is what you would do with the time you have",
    "What is the capital of France? Where does the cat live? How many years?",
]


def wordpiece(lower_case: bool = True, more: list[str] | None = None) -> BertTokenizer:
    vocab = vocabulary()
    for token in more or []:
        vocab.setdefault(token, len(vocab))
    return BertTokenizer(
        vocab=vocab, do_lower_case=lower_case, model_max_length=MAX_TOKENS
    )


def distilbert() -> DistilBertTokenizer:
    return DistilBertTokenizer(vocab=vocabulary(), model_max_length=MAX_TOKENS)


def byte_level(add_prefix_space: bool) -> RobertaTokenizer:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    vocab, merges = vocab_and_merges(trained)
    vocab["<mask>"] = len(vocab)
    return RobertaTokenizer(
        vocab=vocab,
        merges=merges,
        add_prefix_space=add_prefix_space,
        model_max_length=MAX_TOKENS,
    )


def vocab_and_merges(
    trained: Tokenizer,
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def unigram_pieces() -> list[tuple[str, float]]:
    """Scores of whole words above their parts, and of parts above letters; all distinct, so that no
    two segmentations tie."""
    words = dict.fromkeys([*WORDS, *" ".join(CORPUS).replace(",", "").split()])
    letters = dict.fromkeys("\u2581" + "".join(sorted(set("".join(CORPUS) + "".join(WORDS)) - {" "})))
    parts = "ing ed er ly tion est al en re on an es th in it ou".split()
    ranked = [
        *("\u2581" + word for word in words),
        *parts,
        *words,
        *letters,
    ]
    pieces = dict.fromkeys(ranked)
    return [
        (piece, -round(4 + 0.02 * rank + (2 if len(piece) == 1 else 0), 3))
        for rank, piece in enumerate(pieces)
    ]


def unigram() -> XLMRobertaTokenizer:
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab = [*special, *unigram_pieces(), ("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=vocab, model_max_length=MAX_TOKENS)
