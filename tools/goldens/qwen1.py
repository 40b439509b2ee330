"""Qwen 1, with llama.cpp as the reference, since transformers has no class for it.

    pip install llama-cpp-python==0.3.36 gguf
    python tools/goldens/qwen1.py [--out DIR]

Weights are a formula (formula.py), written to a GGUF file in F32 with the names and keys of
llama.cpp's converter. llama.cpp computes in float32 throughout: its KV cache is F32 and flash
attention is off. The same model in plain torch in float64, after the published code, must agree in
every layer; its distance is stored.
"""

import argparse
import ctypes
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as ll
import numpy as np
import torch

from decoding import CONTINUED, GAP, LENGTHS, STEPS, draw, gap, near
from files import empty_dir, write_json
from synthetic import Packed, spread, weights, write_tensors

GOLDENS = Path(__file__).resolve().parents[2] / "crates" / "testkit" / "goldens"
LIBRARY = ctypes.CDLL(str(Path(ll.__file__).parent / "lib" / "libggml-base.so"))
LIBRARY.ggml_get_name.restype = ctypes.c_char_p
LIBRARY.ggml_get_name.argtypes = [ctypes.c_void_p]
LIBRARY.ggml_nelements.restype = ctypes.c_int64
LIBRARY.ggml_nelements.argtypes = [ctypes.c_void_p]
LIBRARY.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] * 2

# As in the files of the hub: `intermediate_size` is twice the width of the MLP, and sequences are
# shorter than `seq_length`, so that neither dynamic NTK nor log n scaling changes anything.
CONFIG = {
    "architectures": ["QWenLMHeadModel"],
    "attn_dropout_prob": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_qwen.QWenConfig",
        "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
    },
    "bf16": False,
    "emb_dropout_prob": 0.0,
    "fp16": False,
    "fp32": False,
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 160,
    "kv_channels": 12,
    "layer_norm_epsilon": 0.01,
    "max_position_embeddings": 256,
    "model_type": "qwen",
    "no_bias": True,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "onnx_safe": None,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "seq_length": 64,
    "tie_word_embeddings": False,
    "tokenizer_class": "QWenTokenizer",
    "transformers_version": "4.32.0",
    "use_cache": True,
    "use_dynamic_ntk": True,
    "use_flash_attn": "auto",
    "use_logn_attn": True,
    "vocab_size": 101,
}
RULES = [
    ("lm_head.weight", 2.5, 0.0),
    ("wte", -0.6, 0.0),
    ("c_attn.weight", 1.4, 0.0),
    ("c_proj.weight", 2.0, 0.0),
]
# From the names of the hub's files to those of GGUF.
ROOT = {
    "transformer.wte": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
}
LAYER = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.w1": "ffn_up",
    "mlp.w2": "ffn_gate",
    "mlp.c_proj": "ffn_down",
}


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    n, inner, vocabulary = (
        config["hidden_size"],
        config["intermediate_size"] // 2,
        config["vocab_size"],
    )
    tensors = {
        "transformer.wte.weight": [vocabulary, n],
        "transformer.ln_f.weight": [n],
        "lm_head.weight": [vocabulary, n],
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "ln_1.weight": [n],
            "attn.c_attn.weight": [3 * n, n],
            "attn.c_attn.bias": [3 * n],
            "attn.c_proj.weight": [n, n],
            "ln_2.weight": [n],
            "mlp.w1.weight": [inner, n],
            "mlp.w2.weight": [inner, n],
            "mlp.c_proj.weight": [n, inner],
        }.items():
            tensors[f"transformer.h.{layer}.{name}"] = shape
    return tensors


def gguf_name(name: str) -> str:
    stem, ending = name.rsplit(".", 1)
    if stem in ROOT:
        return f"{ROOT[stem]}.{ending}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}.{ending}"


def write_gguf(path: Path, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "qwen")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_rope_freq_base(float(config["rotary_emb_base"]))
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{i}>" for i in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_token_merges(["a b"])
    for name, values in tensors.items():
        writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp with everything in float32, which keeps the hidden states of the last call."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        model_options = ll.llama_model_default_params()
        model_options.use_mmap = False
        self.model = ll.llama_model_load_from_file(str(path).encode(), model_options)
        self.size, self.hidden = config["vocab_size"], config["hidden_size"]
        layers = range(config["num_hidden_layers"] - 1)
        self.wanted = ["embd", *(f"l_out-{layer}" for layer in layers), "result_norm"]
        self.states: dict[str, np.ndarray] = {}
        self.callback = ll.ggml_backend_sched_eval_callback(self.watch)
        options = ll.llama_context_default_params()
        options.n_ctx = 256
        # One thread: the order of a sum, and so its last bit, depends on the number of threads.
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = 0  # F32
        options.flash_attn_type = 0  # off
        options.cb_eval = self.callback
        self.context = ll.llama_init_from_model(self.model, options)

    def watch(self, tensor: int, ask: bool, _data: Any) -> bool:
        name = LIBRARY.ggml_get_name(tensor).decode()
        if name not in self.wanted:
            return not ask
        if not ask:
            rows = np.empty(LIBRARY.ggml_nelements(tensor), np.float32)
            LIBRARY.ggml_backend_tensor_get(tensor, rows.ctypes.data, 0, rows.nbytes)
            self.states[name] = rows.reshape(-1, self.hidden)
        return True

    def clear(self) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)

    def step(self, ids: list[int], start: int) -> torch.Tensor:
        """Logits of every one of `ids`, the first of which has the position `start`."""
        batch = ll.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert ll.llama_decode(self.context, batch) == 0
        ll.llama_batch_free(batch)
        logits = ll.llama_get_logits(self.context)
        rows = np.ctypeslib.as_array(logits, (len(ids), self.size)).copy()
        return torch.from_numpy(rows)

    def hidden_states(self) -> list[torch.Tensor]:
        return [torch.from_numpy(self.states[name]) for name in self.wanted]


class Plain:
    """The published equations in float64."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.config = config
        self.w = {name: torch.from_numpy(value).double() for name, value in tensors.items()}

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        mean = x.square().mean(-1, keepdim=True) + self.config["layer_norm_epsilon"]
        return x / mean.sqrt() * self.w[name]

    def rotate(self, x: torch.Tensor) -> torch.Tensor:  # [tokens, heads, size]
        size, half = x.shape[-1], x.shape[-1] // 2
        exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
        positions = torch.arange(len(x), dtype=torch.float64)
        angles = torch.outer(positions, self.config["rotary_emb_base"] ** -exponents)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        heads, n = self.config["num_attention_heads"], self.config["hidden_size"]
        x = self.w["transformer.wte.weight"][ids]
        states, tokens = [x], len(ids)
        mask = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)
        for layer in range(self.config["num_hidden_layers"]):
            at = f"transformer.h.{layer}"
            h = self.norm(x, f"{at}.ln_1.weight")
            qkv = h @ self.w[f"{at}.attn.c_attn.weight"].T + self.w[f"{at}.attn.c_attn.bias"]
            q, k, v = (part.reshape(tokens, heads, n // heads) for part in qkv.split(n, -1))
            q, k = self.rotate(q), self.rotate(k)
            scores = torch.einsum("qhd,khd->hqk", q, k) / (n // heads) ** 0.5 + mask
            mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(tokens, n)
            x = x + mixed @ self.w[f"{at}.attn.c_proj.weight"].T
            h = self.norm(x, f"{at}.ln_2.weight")
            up, gate = (h @ self.w[f"{at}.mlp.{name}.weight"].T for name in ("w1", "w2"))
            inner = up * torch.nn.functional.silu(gate)
            x = x + inner @ self.w[f"{at}.mlp.c_proj.weight"].T
            states.append(x)
        states[-1] = self.norm(x, "transformer.ln_f.weight")
        return states[-1] @ self.w["lm_head.weight"].T, states


def write(out: Path, name: str, seed: int, config: dict[str, Any]) -> None:
    directory = empty_dir(out / name)
    write_json(directory / "config.json", config)
    specs = {name: spread(name, shape, RULES) for name, shape in shapes(config).items()}
    write_tensors(directory / "tensors.json", seed, specs)
    tensors = weights(seed, specs)
    with tempfile.TemporaryDirectory() as temporary:
        write_gguf(Path(temporary) / "model.gguf", config, tensors)
        reference = LlamaCpp(Path(temporary) / "model.gguf", config)
    plain = Plain(config, tensors)
    prompts = [ids[0] for ids in draw(seed, config["vocab_size"], LENGTHS)]
    packed, distance = Packed(), {"logits": 0.0, "hidden": 0.0}
    for number, ids in enumerate(prompts):
        reference.clear()
        logits = reference.step(ids.tolist(), 0)
        exact, exact_states = plain.forward(ids)
        packed.lengths.append(len(ids))
        packed.add("ids", ids)
        packed.add("logits", logits)
        distance["logits"] = max(distance["logits"], near(logits, exact))
        if number == CONTINUED:
            states = reference.hidden_states()
            for layer, (rows, wanted) in enumerate(zip(states, exact_states, strict=True)):
                packed.add(f"hidden.{layer}", rows)
                distance["hidden"] = max(distance["hidden"], near(rows, wanted))
    reference.clear()
    prompt, chosen, rows = prompts[CONTINUED], [], []
    for step in range(STEPS):
        new, start = (chosen[-1:], len(prompt) + step - 1) if step else (prompt.tolist(), 0)
        rows.append(reference.step(new, start)[-1:])
        chosen.append(rows[-1].argmax().item())
    logits, whole = torch.cat(rows), torch.cat([prompt, torch.tensor(chosen)])
    assert gap(logits) > GAP, gap(logits)
    assert len(set(chosen)) >= 10, chosen
    distance["decode.logits"] = near(logits, plain.forward(whole)[0][len(prompt) - 1 : -1])
    packed.add("decode.ids", torch.tensor(chosen))
    packed.add("decode.logits", logits)
    assert torch.cat(packed.rows["logits"]).std() > 1
    assert max(distance.values()) < 1e-4, distance
    about = {
        "architecture": config["architectures"][0],
        "model": f"llama.cpp (llama-cpp-python {ll.__version__})",
        "continued": CONTINUED,
        "float64_distance": {
            name: float(f"{value:.1e}") for name, value in distance.items()
        },
    }
    packed.write(directory, about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDENS)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    write(out, "qwen", 871, CONFIG)
    # As in the 72B: another base, and nothing that depends on the length.
    unscaled = {"use_dynamic_ntk": False, "use_logn_attn": False, "rotary_emb_base": 1000000}
    write(out, "qwen-unscaled", 972, CONFIG | unscaled | {"layer_norm_epsilon": 1e-06})


if __name__ == "__main__":
    main()
