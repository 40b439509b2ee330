#!/usr/bin/env python3
"""Writes a GGUF file of an 8 B Llama in llama.cpp's Q4_K_M mix, with random blocks:
benches/q4_k_m.py FILE

Every tensor repeats the same blocks, so writing takes seconds and little memory; reading and
multiplying them costs the same as with other blocks. The scales give weights of about 0.02, so that
activations stay finite. The vocabulary has the 256 bytes and words that no text contains: enough for
`sconce bench -m FILE` and `benches/passes.rs`.
"""
import pathlib
import random
import struct
import sys

WIDTH, INNER, LAYERS, HEADS, KV, VOCABULARY = 4096, 14336, 32, 32, 8, 128256
F32, Q4_K, Q6_K = 0, 12, 14
# The number of distinct blocks; every tensor repeats them a whole number of times.
BLOCKS = 256


def half(value):
    return struct.pack("<e", value)


def patterns():
    """BLOCKS blocks of 256 weights in each format, and norm weights in F32."""
    dice = random.Random(1)
    # d · scale · code − dmin · min, with 6-bit scales and mins and 4-bit codes: d and dmin center
    # the weights on zero.
    q4 = b"".join(half(1.4e-4) + half(1.05e-3) + dice.randbytes(12 + 128) for _ in range(BLOCKS))
    # d · scale · (code − 32), here with scales from 0 to 15 and 6-bit codes.
    q6 = b"".join(dice.randbytes(128 + 64) + bytes(b & 15 for b in dice.randbytes(16)) + half(1.2e-4) for _ in range(BLOCKS))
    return {Q4_K: q4, Q6_K: q6, F32: struct.pack("<f", 1.0) * 1024}


def tensors():
    """(name, outputs, inputs, format) of every tensor."""
    yield "token_embd.weight", VOCABULARY, WIDTH, Q4_K
    yield "output_norm.weight", 1, WIDTH, F32
    yield "output.weight", VOCABULARY, WIDTH, Q6_K
    for i in range(LAYERS):
        # Q4_K_M uses Q6_K for attn_v and ffn_down in the first and last eighth of the layers and in
        # every third layer between.
        more = Q6_K if i < LAYERS // 8 or i >= 7 * LAYERS // 8 or (i - LAYERS // 8) % 3 == 2 else Q4_K
        kv = WIDTH // HEADS * KV
        for name, n, k, kind in [("attn_norm", 1, WIDTH, F32), ("ffn_norm", 1, WIDTH, F32), ("attn_q", WIDTH, WIDTH, Q4_K),
                                 ("attn_k", kv, WIDTH, Q4_K), ("attn_v", kv, WIDTH, more), ("attn_output", WIDTH, WIDTH, Q4_K),
                                 ("ffn_gate", INNER, WIDTH, Q4_K), ("ffn_up", INNER, WIDTH, Q4_K), ("ffn_down", WIDTH, INNER, more)]:
            yield f"blk.{i}.{name}.weight", n, k, kind


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def strings(texts):
    return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(string, texts))


def tokenizer():
    """A byte-level BPE without merges, as GGUF metadata."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
    tokens = letters + [f"<{i}>" for i in range(256, VOCABULARY)]
    yield "tokenizer.ggml.model", struct.pack("<I", 8) + string("gpt2")
    yield "tokenizer.ggml.pre", struct.pack("<I", 8) + string("llama-bpe")
    yield "tokenizer.ggml.tokens", strings(tokens)
    yield "tokenizer.ggml.merges", strings([])
    yield "tokenizer.ggml.eos_token_id", struct.pack("<II", 4, VOCABULARY - 1)


def write(path):
    parts, every = patterns(), list(tensors())
    per_element = {kind: len(part) / (1024 if kind == F32 else 256 * BLOCKS) for kind, part in parts.items()}
    keys = {"embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER, "attention.head_count": HEADS,
            "attention.head_count_kv": KV, "context_length": 8192, "rope.dimension_count": WIDTH // HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0}
    texts = list(tokenizer())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(every), 1 + len(keys) + len(texts))
    head += string("general.architecture") + struct.pack("<I", 8) + string("llama")
    head += b"".join(string(key) + value for key, value in texts)
    for key, value in keys.items():
        head += string("llama." + key) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))
    at, sizes = 0, []
    for name, n, k, kind in every:
        head += string(name) + (struct.pack("<IQ", 1, k) if n == 1 else struct.pack("<IQQ", 2, k, n)) + struct.pack("<IQ", kind, at)
        sizes.append(int(n * k * per_element[kind]))
        at += sizes[-1] + -sizes[-1] % 32
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for (_, _, _, kind), size in zip(every, sizes):
            many = parts[kind] * 32
            for begin in range(0, size, len(many)):
                file.write(many[:min(len(many), size - begin)])
            file.write(bytes(-size % 32))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
