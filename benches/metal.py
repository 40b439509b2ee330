#!/usr/bin/env python3
"""Sconce against PyTorch (MPS) and MLX on an Apple GPU: benches/metal.py [--model minilm] [--rounds 5] [--seconds 1] [--device metal]

IT HAS NEVER RUN ON A MAC. It was tried on Linux with --device cpu, which shows that it runs and
that all engines compute the same embeddings, and nothing about speed. If you are the first to run
it on a Mac, please attach its output and that of `sconce doctor --json` to an issue.

All engines embed the same number of texts of the same number of tokens, in f32 and in f16, by
turns: in each round every engine has `seconds` for each shape after a warm-up; the table has the
medians over the rounds. A call ends when the embeddings are in host memory, so no work is pending
when the clock is read. Sconce's time includes tokenization; the peers start with token ids. Nothing
is padded: all texts of a call have the same length. The least cosine between a peer's embeddings
and Sconce's in f32 shows that the peer computes the same thing.

Peers are torch (with transformers) and mlx, if this Python has them. The model is a BERT with mean
pooling: a name that sconce knows, or a folder. $SCONCE is the binary (default: built here with
cargo).
"""
import argparse
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = ["f32", "f16"]
TEXTS = [
    "A man is eating food.",
    "The committee asked for the results of the experiment, although it had rained for days.",
    "Nobody in the village has ever seen a guitar without strings.",
]


class Torch:
    """transformers' BERT with SDPA attention, pooled and L2-normalized on the device."""

    def __init__(self, folder, dtype, device):
        import torch
        from transformers import AutoModel

        self.torch, self.device = torch, torch.device("mps" if device == "metal" else device)
        kind = {"f32": torch.float32, "f16": torch.float16}[dtype]
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").to(self.device, kind).eval()

    def vectors(self, ids):
        with self.torch.inference_mode():
            tokens = self.model(input_ids=self.torch.from_numpy(ids).to(self.device)).last_hidden_state
            pooled = tokens.float().mean(1)
            # The copy synchronizes with the device.
            return (pooled / pooled.norm(dim=1, keepdim=True)).cpu().numpy()


class Mlx:
    """BERT in MLX's fast ops, compiled; written here because MLX has no encoders."""

    def __init__(self, folder, dtype, device):
        import mlx.core as mx

        self.mx = mx
        mx.set_default_device(mx.gpu if device == "metal" else mx.cpu)
        kind = {"f32": mx.float32, "f16": mx.float16}[dtype]
        weights = mx.load(str(pathlib.Path(folder) / "model.safetensors"))
        self.weights = {name.removeprefix("bert."): w.astype(kind) for name, w in weights.items() if "position_ids" not in name}
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        assert self.config["model_type"] == "bert" and self.config["hidden_act"] == "gelu", "only BERT with exact GELU is implemented"
        self.forward = mx.compile(self.encode)

    def linear(self, x, name):
        return self.mx.addmm(self.weights[f"{name}.bias"], x, self.weights[f"{name}.weight"].T)

    def norm(self, x, name):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.mx.fast.layer_norm(x, weight, bias, self.config["layer_norm_eps"])

    def encode(self, ids):
        mx, heads = self.mx, self.config["num_attention_heads"]
        batch, length = ids.shape
        table = lambda name: self.weights[f"embeddings.{name}_embeddings.weight"]
        x = table("word")[ids] + table("position")[:length] + table("token_type")[0]
        x = self.norm(x, "embeddings.LayerNorm")  # [batch, length, hidden]
        for i in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{i}"
            split = lambda y: y.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)  # [batch, heads, length, size]
            q, k, v = (split(self.linear(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value"))
            y = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5)
            y = y.transpose(0, 2, 1, 3).reshape(batch, length, -1)
            x = self.norm(x + self.linear(y, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
            y = self.linear(x, f"{at}.intermediate.dense")
            y = y * (1 + mx.erf(y * 2**-0.5)) / 2
            x = self.norm(x + self.linear(y, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        pooled = x.astype(mx.float32).mean(1)
        return pooled / mx.linalg.norm(pooled, axis=1, keepdims=True)

    def vectors(self, ids):
        # The copy to numpy evaluates the graph and waits for it.
        return np.array(self.forward(self.mx.array(ids)))


PEERS = {"torch": (Torch, ["torch", "transformers"]), "mlx": (Mlx, ["mlx"])}


def sconce(binary, *arguments):
    return json.loads(subprocess.run([binary, *arguments, "--json"], check=True, stdout=subprocess.PIPE).stdout)


def build():
    subprocess.run(["cargo", "build", "--quiet", "--release", "--manifest-path", ROOT / "Cargo.toml"], check=True)
    return ROOT / "target/release/sconce"


def median(peer, ids, seconds):
    """Median seconds of a call, after a warm-up call."""
    peer.vectors(ids)
    begun, times = time.perf_counter(), []
    while len(times) < 3 or time.perf_counter() - begun < seconds:
        one = time.perf_counter()
        peer.vectors(ids)
        times.append(time.perf_counter() - one)
    return statistics.median(times)


def least_cosine(peer, folder, ours):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    theirs = [peer.vectors(np.array([tokenizer.encode(text).ids]))[0] for text in TEXTS]
    return min(float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(ours, theirs))


def main():
    options = argparse.ArgumentParser(usage=__doc__.splitlines()[0].split(": ", 1)[1])
    options.add_argument("--model", default="minilm")
    options.add_argument("--device", default="metal", choices=["metal", "cpu"])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0)
    args = options.parse_args()
    binary = os.environ.get("SCONCE") or build()
    folder = sconce(binary, "plan", "-q", args.model)["root"]
    common = ["-q", "-m", args.model, "-d", args.device]
    ours = sconce(binary, "embed", *common, "--dtype", "f32", *TEXTS)["embeddings"]

    peers, cosines = {}, {}
    for name, (kind, modules) in PEERS.items():
        if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
            print(f"{name} is skipped: {', '.join(missing)} not installed")
            continue
        for dtype in DTYPES:
            peers[name, dtype] = kind(folder, dtype, args.device)
            cosines[name, dtype] = least_cosine(peers[name, dtype], folder, ours)

    runs, rungs = {}, {}
    for _ in range(args.rounds):
        for dtype in DTYPES:
            bench = sconce(binary, "bench", *common, "--dtype", dtype, "--seconds", str(args.seconds))
            for line in bench["lines"]:
                runs.setdefault((line["texts"], line["tokens"]), {}).setdefault(("sconce", dtype), []).append(line["median_seconds"])
            # Ops that did not run as a fused kernel, which may explain a number.
            rungs[dtype] = sorted({f"{op['op']} {op['rung']}" for op in bench["ops"] if op["rung"] != "fused"})
        for key, peer in peers.items():
            for (texts, tokens), engines in runs.items():
                ids = np.random.default_rng(7).integers(1000, 20000, (texts, tokens))
                engines.setdefault(key, []).append(median(peer, ids, args.seconds))

    engines = [(name, dtype) for dtype in DTYPES for name in ("sconce", *PEERS) if name == "sconce" or (name, dtype) in peers]
    print(f"{args.model} on {args.device}, {platform.platform()}, texts per second; ratio to the faster peer in brackets\n")
    print("| texts × tokens | " + " | ".join(f"{name} {dtype}" for name, dtype in engines) + " |")
    print("|---" * (len(engines) + 1) + "|")
    for (texts, tokens), of in runs.items():
        rates = {key: texts / statistics.median(seconds) for key, seconds in of.items()}
        cells = []
        for name, dtype in engines:
            others = [rates[peer, dtype] for peer in PEERS if (peer, dtype) in rates]
            ahead = f" ({rates[name, dtype] / max(others):.2f} ×)" if name == "sconce" and others else ""
            cells.append(f"{rates[name, dtype]:.0f}{ahead}")
        print(f"| {texts} × {tokens} | " + " | ".join(cells) + " |")
    if cosines:
        print("| least cosine to sconce f32 | " + " | ".join(f"{cosines[e]:.6f}" if e in cosines else "" for e in engines) + " |")
    for dtype, found in rungs.items():
        print(f"\nsconce {dtype}: " + (f"not on fused kernels: {', '.join(found)}" if found else "all ops on fused kernels"))


if __name__ == "__main__":
    main()
