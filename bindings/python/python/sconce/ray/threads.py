"""CPU threads of the engine in a process that Ray has started."""

import ray

from .. import machine
from ..errors import DeviceError
from ..progress import logger


def assigned_cpus():
    """The CPUs that Ray has given to this actor or task; None outside of Ray, or if it has none."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # The driver owns no resources.
        return None
    return context.get_assigned_resources().get("CPU")


def use_threads(count=None):
    """Sets the engine's threads to `count`, by default to the CPUs of the actor, and at least to 1."""
    cpus = assigned_cpus() if count is None else count
    if cpus is None:
        return
    try:
        machine.set_threads(max(1, int(cpus)))
    except DeviceError as error:
        # A process that ran a model before: the result is the same, the speed is not.
        logger.warning(f"{error}; asked for {cpus}")
