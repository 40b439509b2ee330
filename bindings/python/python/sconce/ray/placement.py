"""Where the models of a run are: one per GPU, or one per group of cores."""

import math
from dataclasses import dataclass

import ray
from ray.data import ActorPoolStrategy

from ..errors import DeviceError, InputError

# Cores of a model on a CPU. More of them speed up a pass less than another model on them would.
_CORES = 8
# Rows per batch: enough micro-batches to keep the device busy until the next batch is there.
_ROWS = 2048


@dataclass(frozen=True)
class Placement:
    """How many models run at most, and what each occupies."""

    models: int
    cpus: float
    gpus: float


def node_resources():
    """The CPUs and GPUs of each living node. Starts Ray, or connects to it, as Ray Data does."""
    if not ray.is_initialized():
        ray.init()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(node.get("CPU", 0), node.get("GPU", 0)) for node in nodes]


def place(nodes, *, device=None, cpus=None, gpus=None, models=None):
    """The placement on `nodes`, a list of CPUs and GPUs.

    A core of each node stays free, because reading, writing and Ray Data's own tasks need one:
    where actors take all CPUs, nothing moves.
    """
    for name, value in (("cpus", cpus), ("models", models)):
        if value is not None and value <= 0:
            raise InputError(f"{name} is {value}; use a number above 0")
    if gpus is None:
        wants_gpu = device is None or str(device).split(":")[0] in ("cuda", "auto", "gpu")
        gpus = 1 if wants_gpu and any(gpu >= 1 for _, gpu in nodes) else 0
    most_cpus = max((cpu for cpu, _ in nodes), default=0)
    if gpus:
        cpus = 1 if cpus is None else cpus
        most = sum(min(math.floor(gpu / gpus), math.floor(cpu / cpus)) for cpu, gpu in nodes)
    else:
        if cpus is None:
            # The smallest node has one model; where all nodes have one core, half of it.
            sizes = [cpu - 1 for cpu, _ in nodes if cpu >= 2]
            cpus = min(_CORES, int(min(sizes))) if sizes else 0.5
        most = sum(math.floor(max(cpu - 1, 0) / cpus) if cpu >= 2 else math.floor(min(cpu, 0.5) / cpus) for cpu, _ in nodes)
    if most < 1:
        what = f"{gpus} GPUs and {cpus} CPUs" if gpus else f"{cpus} CPUs and one more for reading and writing"
        raise DeviceError(f"no node has {what} for a model: the largest of {len(nodes)} nodes has {most_cpus:g} CPUs")
    return Placement(models=min(most, models or most), cpus=cpus, gpus=gpus)


def map_options(*, device=None, cpus=None, gpus=None, models=None, batch_size=_ROWS, **ray_options):
    """Arguments of `map_batches` for one model per GPU, or per group of cores of this cluster.

    `cpus` and `gpus` are those of each model, `models` is how many there are at most. By default
    every GPU has a model; without GPUs a model has up to 8 cores, and a core of each node is left
    for reading and writing. The engine's threads are the CPUs of the actor. `ray_options` are passed
    on.
    """
    placement = place(node_resources(), device=device, cpus=cpus, gpus=gpus, models=models)
    # The pool may shrink, so that the actors of a node that was lost find room elsewhere. All of it
    # starts at once.
    compute = ActorPoolStrategy(min_size=1, max_size=placement.models, initial_size=placement.models)
    options = {
        "compute": compute,
        "num_cpus": placement.cpus,
        "batch_size": batch_size,
        "batch_format": "pyarrow",
        "udf_modifying_row_count": False,
    }
    if placement.gpus:
        options["num_gpus"] = placement.gpus
    return options | ray_options
