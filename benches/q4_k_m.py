#!/usr/bin/env python3
"""A GGUF file of a Llama of 8 B in llama.cpp's mix Q4_K_M, with random blocks: benches/q4_k_m.py FILE

Every tensor repeats the same blocks, which takes seconds and no memory; what it costs to read and multiply them is the same. Scales are
such that weights are about 0.02 large, so that activations stay finite. There are no tokens: it is for `passes`.
"""
import pathlib
import random
import struct
import sys

WIDTH, INNER, LAYERS, HEADS, KV, WORDS = 4096, 14336, 32, 32, 8, 128256
F32, Q4_K, Q6_K = 0, 12, 14
# Blocks that are repeated: a whole number of times in every tensor.
BLOCKS = 256


def half(value):
    return struct.pack("<e", value)


def patterns():
    """Some blocks of each format, of 256 weights, and one norm's weights."""
    dice = random.Random(1)
    # d · scale · code − m · least, scales and leasts of six bits and codes of four: the halves are as far below as above.
    q4 = b"".join(half(1.4e-4) + half(1.05e-3) + dice.randbytes(12 + 128) for _ in range(BLOCKS))
    # d · scale · (code − 32), here with scales from 0 to 15 and codes of six bits.
    q6 = b"".join(dice.randbytes(128 + 64) + bytes(b & 15 for b in dice.randbytes(16)) + half(1.2e-4) for _ in range(BLOCKS))
    return {Q4_K: q4, Q6_K: q6, F32: struct.pack("<f", 1.0) * 1024}


def tensors():
    """(name, outputs, inputs, format) of each."""
    yield "token_embd.weight", WORDS, WIDTH, Q4_K
    yield "output_norm.weight", 1, WIDTH, F32
    yield "output.weight", WORDS, WIDTH, Q6_K
    for i in range(LAYERS):
        # The mix gives the first and last eighth of the layers, and every third between, more bits where they tell most.
        more = Q6_K if i < LAYERS // 8 or i >= 7 * LAYERS // 8 or (i - LAYERS // 8) % 3 == 2 else Q4_K
        kv = WIDTH // HEADS * KV
        for name, n, k, kind in [("attn_norm", 1, WIDTH, F32), ("ffn_norm", 1, WIDTH, F32), ("attn_q", WIDTH, WIDTH, Q4_K),
                                 ("attn_k", kv, WIDTH, Q4_K), ("attn_v", kv, WIDTH, more), ("attn_output", WIDTH, WIDTH, Q4_K),
                                 ("ffn_gate", INNER, WIDTH, Q4_K), ("ffn_up", INNER, WIDTH, Q4_K), ("ffn_down", WIDTH, INNER, more)]:
            yield f"blk.{i}.{name}.weight", n, k, kind


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write(path):
    parts, every = patterns(), list(tensors())
    per_element = {kind: len(part) / (1024 if kind == F32 else 256 * BLOCKS) for kind, part in parts.items()}
    keys = {"embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER, "attention.head_count": HEADS,
            "attention.head_count_kv": KV, "context_length": 8192, "rope.dimension_count": WIDTH // HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(every), 1 + len(keys)) + string("general.architecture") + struct.pack("<I", 8) + string("llama")
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
