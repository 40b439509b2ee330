#!/usr/bin/env python3
"""Sconce against PyTorch on one NVIDIA GPU:
benches/cuda.py [--only minilm,bert,llama,q4_k_m] [--compiled] [--work DIR]

Models of real sizes with the same random weights for both, from token ids to embeddings or tokens
in host memory: a call ends when they have arrived there, so no work is pending when the clock is
read. Medians after a warm-up. PyTorch runs transformers' models with SDPA attention and pads ragged
batches to the longest sequence. --compiled adds torch.compile with CUDA graphs, which takes
minutes. q4_k_m is a GGUF file that only Sconce runs: PyTorch has no products with its blocks.
$PASSES is our binary (default: `cargo bench --workspace --bench passes --features
sconce/cuda`).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, LlamaConfig, StaticCache

import q4_k_m

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
LLAMA = dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
             num_key_value_heads=8, max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=False)
MODELS = {
    "minilm": (BertConfig(**MINILM), torch.float16, ["1x16", "1x128", "32x128", "256x128", "ragged256"]),
    "bert": (BertConfig(), torch.float16, ["1x16", "256x128"]),
    "llama": (LlamaConfig(**LLAMA), torch.bfloat16, ["decode1", "decode32", "prefill2048"]),
}
CACHED = 128


def median(call, seconds=1.0):
    for _ in range(5):
        call()
    times, start = [], time.perf_counter()
    while len(times) < 10 or time.perf_counter() - start < seconds:
        one = time.perf_counter()
        call()
        times.append(time.perf_counter() - one)
    return statistics.median(times)


def make(config, dtype, folder):
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    kind = AutoModelForCausalLM if config.model_type == "llama" else AutoModel
    with torch.device("cuda"):
        model = kind.from_config(config, attn_implementation="sdpa").eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return model


def sequence_lengths(shape):
    if shape.startswith("ragged"):
        return [8 + i * 97 % 249 for i in range(int(shape[6:]))]
    count, tokens = map(int, shape.split("x"))
    return [tokens] * count


def embeddings(model, forward, shape):
    """Mean-pooled, L2-normalized embeddings."""
    lengths = sequence_lengths(shape)
    longest = max(lengths)
    ids = torch.arange(1000, 1000 + longest).repeat(len(lengths), 1)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    padded = min(lengths) < longest

    def call():
        on = mask.cuda() if padded else None
        hidden = forward(input_ids=ids.cuda(), attention_mask=on).last_hidden_state.float()
        pooled = (hidden * on[..., None]).sum(1) / on.sum(1, keepdim=True) if padded else hidden.mean(1)
        return torch.nn.functional.normalize(pooled, dim=1).cpu()

    return median(call)


def tokens(model, forward, shape):
    """Greedy next tokens: a decode step after CACHED tokens, or a prefill."""
    if shape.startswith("prefill"):
        ids = torch.arange(1000, 1000 + int(shape[7:]))[None]
        return median(lambda: forward(input_ids=ids.cuda(), logits_to_keep=1, use_cache=True).logits[:, -1].argmax(-1).cpu())
    count = int(shape[6:])
    cache = StaticCache(config=model.config, max_cache_len=256)
    forward(input_ids=torch.full((count, CACHED), 1000).cuda(), past_key_values=cache, cache_position=torch.arange(CACHED).cuda(),
            logits_to_keep=1)
    ids, position = torch.full((count, 1), 1000), torch.tensor([CACHED]).cuda()
    return median(lambda: forward(input_ids=ids.cuda(), past_key_values=cache, cache_position=position).logits[:, -1].argmax(-1).cpu())


def ours(folder, dtype, shapes):
    name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    passes = os.environ.get("PASSES")
    command = [passes] if passes else ["cargo", "bench", "--quiet", "--workspace", "--bench", "passes", "--features", "sconce/cuda", "--"]
    out = subprocess.run([*command, str(folder), "cuda:0", name, *shapes], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {line["shape"]: line["seconds"] for line in map(json.loads, out.splitlines())}


def quantized(file):
    if not file.exists():
        q4_k_m.write(file)
    for dtype in [torch.float16, torch.bfloat16]:
        for shape, seconds in ours(file, dtype, ["decode1", "decode32", "prefill2048"]).items():
            print(f"q4_k_m  {shape:12} ours {seconds * 1e3:9.3f} ms   ({str(dtype)[6:]})", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--only", default=",".join([*MODELS, "q4_k_m"]))
    args.add_argument("--compiled", action="store_true")
    args.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "cuda-bench")
    args = args.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    with torch.inference_mode():
        for name in args.only.split(","):
            if name == "q4_k_m":
                quantized(args.work / "q4_k_m.gguf")
                continue
            config, dtype, shapes = MODELS[name]
            folder = args.work / name
            model = make(config, dtype, folder)
            time_of = tokens if name == "llama" else embeddings
            eager = {shape: time_of(model, model, shape) for shape in shapes}
            compiled = {}
            if args.compiled:
                forward = torch.compile(model, mode="reduce-overhead", dynamic=False)
                compiled = {shape: time_of(model, forward, shape) for shape in shapes if not shape.startswith("ragged")}
            del model
            torch.cuda.empty_cache()
            for shape, seconds in ours(folder, dtype, shapes).items():
                best = min(t[shape] for t in (eager, compiled) if shape in t)
                units = lambda t: f"{t * 1e3:9.3f} ms"
                print(f"{name:7} {shape:12} ours {units(seconds)}   PyTorch {units(eager[shape])}"
                      + (f"   compiled {units(compiled[shape])}" if shape in compiled else "") + f"   × {best / seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
