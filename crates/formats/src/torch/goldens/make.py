"""Writes the checkpoints of this folder, and expected.txt with the tensors that torch itself reads from them.

    python make.py        (any torch since 2.4; last run with 2.15)
"""
import collections
import os
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
LINES = []
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "Bool",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def raw(tensor):
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes().hex() if flat.numel() else ""


def expect(file, tensors):
    for name, t in tensors.items():
        dims = ",".join(map(str, t.shape))
        LINES.append(f"{file}\t{name}\t{NAMES[t.dtype]}\t{dims}\t{raw(t)}")


def good(file, tensors, wrap=lambda t: t, **options):
    torch.save(wrap(tensors), HERE / file, **options)
    expect(file, tensors)


def bad(file, content, why, **options):
    torch.save(content, HERE / file, **options)
    LINES.append(f"{file}\trefused\t{why}")


def rezip(source, file, method=zipfile.ZIP_STORED, change=None, skip=()):
    with zipfile.ZipFile(HERE / source) as old, zipfile.ZipFile(HERE / file, "w", method) as new:
        for info in old.infolist():
            base = info.filename.split("/", 1)[1]
            if base not in skip:
                fresh = zipfile.ZipInfo(info.filename)
                fresh.compress_type = method
                new.writestr(fresh, (change or {}).get(base, old.read(info)))


def arange(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) * 0.75 - 2).reshape(shape).to(dtype)


class Evil:
    def __reduce__(self):
        return (os.system, ("echo this must never be seen",))


class Thing:
    pass


torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Embedding(4, 3))
state = model.state_dict()
assert "1.num_batches_tracked" in state and state._metadata

dtypes = {}
for dtype, name in NAMES.items():
    if dtype in (torch.uint64, torch.uint32, torch.uint16):
        dtypes[name] = torch.tensor([[1, 2], [3, 60000]], dtype=dtype)
    elif dtype.is_floating_point:
        dtypes[name] = arange(2, 3, dtype=dtype)
    else:
        dtypes[name] = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)
good("dtypes.pt", dtypes)
good("module.pt", state)
good("protocol3.pt", state, pickle_protocol=3)
good("protocol4.pt", state, pickle_protocol=4)
good("protocol5.pt", state, pickle_protocol=5)

base = arange(6, 4)
good("shared.pt", {
    "whole": base, "tied": base, "rows": base[2:5], "row": base[3], "one": base[1, 2], "reshaped": base.view(3, 8),
    "unit_axes": base.as_strided((1, 4, 1), (99, 1, 50), 8), "none": base[6:], "head": base[:1, :3],
})
good("edges.pt", {
    "scalar": torch.tensor(1.5), "count": torch.tensor(3), "empty": torch.zeros(0), "no_columns": torch.zeros(3, 0),
    "no_rows": torch.zeros(0, 3), "naïve.ключ": torch.ones(1), "expanded_unit": torch.arange(4).expand(1, -1),
    "stepped_empty": base.t()[:, 3:3],
})
attribute = torch.nn.Parameter(arange(2))
attribute.note = "kept by torch, ignored by us"
good("parameter.pt", collections.OrderedDict(w=torch.nn.Parameter(arange(2, 2)), frozen=torch.nn.Parameter(
    arange(2), requires_grad=False), attribute=attribute))
good("state_dict.pt", state, lambda t: {
    "epoch": 3, "loss": 0.5, "best": None, "when": b"bytes", "tags": ["a", {"b": (1, 2, 3, 4)}], "big": 1 << 80,
    "ids": {1, 2}, "done": True, "size": torch.Size([2, 3]), "dtype": torch.float16,
    "device": torch.device("cpu"), "negative": -5, "step": torch.tensor(9), "state_dict": t,
    "optimizer": {"state": {0: {"exp_avg": arange(2)}}, "param_groups": [{"lr": 1e-3, "params": [0, 1]}]},
}, pickle_protocol=4)
good("model.pt", state, lambda t: {"epoch": 1, "model": {"state_dict": t, "name": "x"}})
# A pickler sets a thousand items at a time, and memo numbers outgrow a byte.
good("many.pt", {"first": arange(2), "last": arange(3)}, lambda t: {
    "first": t["first"], **{str(i): None for i in range(1003)}, "last": t["last"]})

# The same container as other programs and older versions of torch write it.
rezip("module.pt", "torch16.pt", skip=("byteorder", ".data/serialization_id", ".format_version", ".storage_alignment"))
expect("torch16.pt", state)
zipfile.ZIP64_LIMIT = 10
rezip("module.pt", "zip64.pt")
zipfile.ZIP64_LIMIT = (1 << 31) - 1
expect("zip64.pt", state)
rezip("module.pt", "deflated.pt", method=zipfile.ZIP_DEFLATED)
LINES.append("deflated.pt\trefused\tdata.pkl compressed")
rezip("module.pt", "big_endian.pt", change={"byteorder": b"big"})
LINES.append("big_endian.pt\trefused\tbig-endian machine")
rezip("module.pt", "lost.pt", skip=("data/2",))
LINES.append("lost.pt\trefused\t1.weight: its bytes, data/2, are missing")
rezip("module.pt", "short.pt", change={"data/0": b"\0" * 20})
LINES.append("short.pt\trefused\t0.weight: its storage should have 6 elements of 4 bytes, the file has 20 bytes")

# A column-major matrix is transposed when it is read: see checkpoint.rs.
torch.save({"fine": arange(2), "turned": arange(2, 3).t()}, HERE / "transposed.pt")
bad("gapped.pt", {"gapped": arange(4, 4)[:, :2]}, "gapped: its shape [4, 2] with strides [4, 1]")
bad("expanded.pt", {"expanded": arange(1).expand(5)}, "expanded: its shape [5] with strides [0]")
bad("negated.pt", {"negated": torch.ones(2, dtype=torch.complex64).conj().imag}, "negated: its values are marked")
bad("complex.pt", {"c": torch.ones(2, dtype=torch.complex64)}, "torch.ComplexFloatStorage")
bad("meta.pt", {"m": torch.ones(2, device="meta")}, "torch._utils._rebuild_meta_tensor_no_storage")
bad("sparse.pt", {"s": torch.eye(2).to_sparse()}, "torch._utils._rebuild_sparse_tensor")
bad("tensor.pt", arange(3), "holds no state dict")
bad("list.pt", [arange(3)], "holds no state dict")
bad("numbers.pt", {"a": 1}, "holds no state dict")
bad("integer_key.pt", {7: arange(3)}, "a key that is no text")
bad("whole_module.pt", model, "torch.nn.modules.container.Sequential")
bad("object.pt", {"w": arange(2), "args": Thing()}, "__main__.Thing")
bad("numpy.pt", {"w": arange(2), "loss": arange(2).numpy()[0]}, "numpy")
bad("evil.pt", {"w": arange(2), "x": Evil()}, "posix.system")
bad("evil4.pt", {"w": arange(2), "x": Evil()}, "posix.system", pickle_protocol=4)

# The format before torch 1.6. It names storages by their addresses, so the bytes of these files differ from run to run.
LEGACY = {"_use_new_zipfile_serialization": False}
good("legacy.pt", {
    "whole": base, "tied": base, "rows": base[2:5], "row": base[3], "one": base[1, 2], "none": base[6:],
    "half": arange(2, 3, dtype=torch.float16), "ids": torch.arange(5), "empty": torch.zeros(0), "scalar":
    torch.tensor(1.5), "w": torch.nn.Parameter(arange(2, 2)), "byte": torch.tensor([7], dtype=torch.uint8),
}, **LEGACY)
good("legacy_nested.pt", state, lambda t: {
    "epoch": 3, "tags": ["a", {"b": (1, 2)}], "model": {"state_dict": t, "name": "x"},
    "optimizer": {"state": {0: {"exp_avg": arange(3, dtype=torch.float64)}}, "kept": [arange(2), None]},
}, **LEGACY)
good("legacy_protocol4.pt", dtypes, pickle_protocol=4, **LEGACY)
bad("legacy_evil.pt", {"w": arange(2), "x": Evil()}, "posix.system", **LEGACY)

(HERE / "expected.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
# Torch must read the same from the good ones. (Its own safe reader does not know protocol 4; these files are ours.)
# In the older format torch 2.15 itself writes, but cannot read, the formats that have no storage of their own.
for file in sorted({line.split("\t")[0] for line in LINES if "\trefused\t" not in line} - {"legacy_protocol4.pt"}):
    torch.load(HERE / file, weights_only=False)
