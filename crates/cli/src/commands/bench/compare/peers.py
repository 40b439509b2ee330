"""Other engines on one sentence-transformers model, timed beside Sconce by `sconce bench --compare`.

    peers.py list              list the engines, each with the packages that it lacks
    peers.py export JOB        export the job's model to ONNX, into its scratch folder
    peers.py serve PEER JOB    load the model and print its vectors; then time every row for each line read
    peers.py first PEER JOB    load the model, embed one text and print a line, to time it from the start of the process

JOB is a JSON file: the model's folder, a scratch folder, threads, seconds per row, and the token ids of
every row, the same for all engines. Every line printed is a JSON object.
"""
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import time

# Libraries may print to standard output. So file descriptor 1 becomes standard error, and answers
# go to a copy of the original standard output.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def send(**message):
    print(json.dumps(message), file=ANSWERS, flush=True)


def pad(batch):
    """Token ids and attention mask, padded with zeros to the longest sequence."""
    import numpy as np

    ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
    mask = np.zeros_like(ids)
    for i, sequence in enumerate(batch):
        ids[i, : len(sequence)] = sequence
        mask[i, : len(sequence)] = 1
    return ids, mask


def pool(job, tokens, mask):
    """L2-normalized vectors by the model's own pooling. Not timed: numpy is not part of the engine."""
    import numpy as np

    settings = json.loads((pathlib.Path(job["model"]) / "1_Pooling/config.json").read_text())
    if settings.get("pooling_mode_cls_token"):
        vectors = tokens[:, 0]
    elif settings.get("pooling_mode_mean_tokens", True):
        mask = mask[:, :, None].astype(np.float32)
        vectors = (tokens * mask).sum(1) / mask.sum(1)
    else:
        raise ValueError("only mean and cls pooling are compared")
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Torch:
    """sentence-transformers, timed from token ids to vectors."""

    def __init__(self, job, precision):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(job["threads"])
        self.torch = torch
        self.model = SentenceTransformer(job["model"], device="cpu").eval()
        if precision == "bf16":
            self.model = self.model.to(torch.bfloat16)

    def run(self, ids, mask):
        features = {"input_ids": self.torch.from_numpy(ids), "attention_mask": self.torch.from_numpy(mask)}
        with self.torch.inference_mode():
            return self.model(features)["sentence_embedding"]

    def vectors(self, ids, mask):
        vectors = self.run(ids, mask).float()
        return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()

    def embed(self, text):
        return self.model.encode([text])[0]


class OnnxEngine:
    """An engine that runs an ONNX file, without tokenization and pooling."""

    def __init__(self, job, precision):
        self.job = job
        name = "model-int8.onnx" if precision == "int8" else "model.onnx"
        self.path = str(pathlib.Path(job["scratch"]) / name)
        self.open(precision)

    def feed(self, ids, mask):
        import numpy as np

        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return {name: given[name] for name in self.names}

    def vectors(self, ids, mask):
        return pool(self.job, self.run(ids, mask), mask)

    def embed(self, text):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(pathlib.Path(self.job["model"]) / "tokenizer.json"))
        tokenizer.no_padding()
        return self.vectors(*pad([tokenizer.encode(text).ids]))[0]


class OnnxRuntime(OnnxEngine):
    def open(self, _):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.job["threads"]
        options.log_severity_level = 3
        self.use(onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"]))

    def use(self, session):
        self.session = session
        self.names = [given.name for given in session.get_inputs()]

    def run(self, ids, mask):
        return self.session.run(None, self.feed(ids, mask))[0]


class FastEmbed(OnnxRuntime):
    """fastembed's ONNX Runtime session, with the same token ids as the others.

    For the time to the first vector, a text goes through fastembed itself."""

    def open(self, _):
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType

        pooling, normal = PoolingType.MEAN, True
        source = ModelSource(hf="sconce/compared")
        TextEmbedding.add_custom_model("sconce/compared", pooling, normal, source, self.job["dimension"], "model.onnx")
        # It expects all files in one folder, as it downloads them.
        folder = pathlib.Path(self.job["scratch"]) / "fastembed"
        folder.mkdir(exist_ok=True)
        for file in [*pathlib.Path(self.job["model"]).glob("*.json"), *pathlib.Path(self.job["scratch"]).glob("model.onnx*")]:
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)
        self.engine = TextEmbedding("sconce/compared", specific_model_path=str(folder), threads=self.job["threads"])
        self.use(self.engine.model.model)

    def embed(self, text):
        return next(iter(self.engine.embed([text])))


class OpenVino(OnnxEngine):
    def open(self, precision):
        import openvino

        core = openvino.Core()
        hint = "bf16" if precision == "bf16" else "f32"
        settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": self.job["threads"], "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = core.compile_model(core.read_model(self.path), "CPU", settings)
        self.names = [next(iter(given.names)) for given in self.compiled.inputs]

    def run(self, ids, mask):
        return self.compiled(self.feed(ids, mask))[0]


EXPORT = ["torch", "transformers", "onnx", "onnxscript"]
PEERS = {
    "sentence-transformers f32": (Torch, ["sentence_transformers", "torch"]),
    "sentence-transformers bf16": (Torch, ["sentence_transformers", "torch"]),
    "onnxruntime f32": (OnnxRuntime, ["onnxruntime", *EXPORT]),
    "onnxruntime int8": (OnnxRuntime, ["onnxruntime", *EXPORT]),
    "openvino f32": (OpenVino, ["openvino", *EXPORT]),
    "openvino bf16": (OpenVino, ["openvino", *EXPORT]),
    "openvino int8": (OpenVino, ["openvino", "onnxruntime", *EXPORT]),
    "fastembed f32": (FastEmbed, ["fastembed", *EXPORT]),
}


def list_peers():
    for peer, (_, modules) in PEERS.items():
        missing = [name.replace("_", "-") for name in modules if importlib.util.find_spec(name) is None]
        send(peer=peer, missing=missing)


def export(job):
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(job["model"], attn_implementation="eager").float().eval()

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    scratch = pathlib.Path(job["scratch"])
    ids = torch.full((2, 16), 5, dtype=torch.int64)
    names, axes = ["input_ids", "attention_mask"], {0: "batch", 1: "tokens"}
    path = scratch / "model.onnx"
    with torch.inference_mode():
        try:
            torch.onnx.export(
                Hidden(), (ids, torch.ones_like(ids)), str(path), input_names=names, output_names=["last_hidden_state"],
                dynamic_axes={name: axes for name in [*names, "last_hidden_state"]}, opset_version=17, dynamo=False,
            )
        except Exception:
            # Newer versions of torch have only this exporter.
            dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
            torch.onnx.export(
                Hidden(), (ids, torch.ones_like(ids)), str(path), input_names=names, output_names=["last_hidden_state"],
                dynamic_shapes={name: dynamic for name in names}, dynamo=True,
            )
    if importlib.util.find_spec("onnxruntime"):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(str(path), str(scratch / "model-int8.onnx"), weight_type=QuantType.QInt8)
    send(exported=True)


def load_engine(peer, job):
    kind, _ = PEERS[peer]
    return kind(job, peer.split()[-1])


def serve(peer, job):
    engine = load_engine(peer, job)
    rows = [(row["name"], [pad(batch) for batch in row["batches"]]) for row in job["rows"]]
    vectors = [engine.vectors(*pad([ids]))[0].tolist() for ids in job["check"]]

    def once(batches):
        begun = time.perf_counter()
        for ids, mask in batches:
            engine.run(ids, mask)
        return time.perf_counter() - begun

    for _, batches in rows:
        once(batches)
    send(ready=True, vectors=vectors)
    for _ in sys.stdin:
        medians = {}
        for name, batches in rows:
            once(batches)
            begun, times = time.perf_counter(), []
            while not times or time.perf_counter() - begun < job["seconds"]:
                times.append(once(batches))
            medians[name] = statistics.median(times)
        send(seconds=medians)


def first(peer, job):
    vector = load_engine(peer, job).embed(job["text"])
    send(first=len(vector))


if __name__ == "__main__":
    task, *rest = sys.argv[1:]
    if task == "list":
        list_peers()
    else:
        job = json.loads(pathlib.Path(rest[-1]).read_text())
        try:
            {"export": lambda: export(job), "serve": lambda: serve(rest[0], job), "first": lambda: first(rest[0], job)}[task]()
        except Exception as why:
            send(failed=f"{type(why).__name__}: {why}"[:500])
            sys.exit(1)
