"""onnxruntime driven by hand: what Sconce's engine for ONNX models is compared with.

    onnx.py time GRAPH THREADS < batches.json    seconds for all batches of token ids
    onnx.py compare SCONCE MODEL                 embeddings of the command and of onnxruntime
    onnx.py serve SCONCE MODEL                   memory of a server over 10,000 requests

Needs onnxruntime and numpy; `compare` also tokenizers."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

TEXTS = [
    "A man is eating food.",
    "",
    "Someone has lunch.",
    "Zoë moved to 東京 in 2019, and wrote a long letter about the trains, the rain and the food there. " * 4,
]


def session(graph: str, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        graph, options, providers=["CPUExecutionProvider"]
    )


def run(model: onnxruntime.InferenceSession, batch: list[list[int]]) -> np.ndarray:
    """Mean-pooled hidden states."""
    longest = max(map(len, batch))
    ids = np.zeros((len(batch), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, (text, known) in enumerate(zip(batch, mask)):
        ids[row, : len(text)] = text
        known[: len(text)] = 1
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
    }
    names = {port.name for port in model.get_inputs()}
    hidden = model.run(
        ["last_hidden_state"], {n: v for n, v in inputs.items() if n in names}
    )[0]
    weights = mask[..., None].astype(np.float32)
    return (hidden * weights).sum(1) / weights.sum(1)


def measure(graph: str, threads: str) -> None:
    batches = json.load(sys.stdin)
    model = session(graph, int(threads))
    run(model, batches[-1])
    start = time.perf_counter()
    for batch in batches:
        run(model, batch)
    print(time.perf_counter() - start)


def compare(sconce: str, folder: str) -> None:
    from tokenizers import Tokenizer

    model = Path(folder)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    limit = json.loads((model / "tokenizer_config.json").read_text())[
        "model_max_length"
    ]
    tokenizer.enable_truncation(limit)
    graph = session(str(model / "onnx" / "model.onnx"), 1)
    wanted = np.concatenate(
        [run(graph, [tokenizer.encode(text).ids]) for text in TEXTS]
    )
    command = [
        sconce,
        "embed",
        "-m",
        folder,
        "--engine",
        "onnx",
        "--device",
        "cpu",
        "--json",
        *TEXTS,
    ]
    out = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    got = np.array(out["embeddings"], np.float32)
    worst = float(np.abs(got - wanted).max() / np.abs(wanted).max())
    print(f"{model.name}: worst difference {worst:.1e} of the largest number")
    assert worst < 1e-5


def serve(sconce: str, folder: str) -> None:
    """10,000 requests of varied lengths: after the first thousand, memory must not grow."""
    from urllib.request import Request, urlopen

    port = "18093"
    command = [sconce, "serve", "-m", folder, "--engine", "onnx", "--port", port]
    server = subprocess.Popen([*command, "--device", "cpu"], stderr=subprocess.DEVNULL)

    def resident() -> int:
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    def post(inputs: list[str]) -> None:
        body = json.dumps({"inputs": inputs}).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{port}/embed"
        urlopen(Request(url, body, headers), timeout=60).read()

    try:
        for _ in range(120):
            try:
                post(["ready"])
                break
            except OSError:
                time.sleep(0.5)
        sizes = []
        for i in range(10_000):
            words = ["word"] * (1 + i * 7919 % 120)
            post([" ".join(words), f"request {i}"])
            if i % 1000 == 999:
                sizes.append(resident())
        print(f"resident MiB after each thousand requests: {sizes}")
        assert sizes[-1] <= sizes[0] * 1.03 + 4, sizes
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    {"time": measure, "compare": compare, "serve": serve}[sys.argv[1]](*sys.argv[2:])
