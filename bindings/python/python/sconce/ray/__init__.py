"""Sconce on Ray: callable classes for Ray Data's `map_batches`, and runs that can be repeated.

`Embed`, `Rerank`, `Classify` and `Generate` are what an actor of Ray Data runs; `map_options` has
the arguments of `map_batches` for one model per GPU, or per group of cores. `embed`, `rerank`,
`classify` and `generate` join both, and with `output` write Parquet files, a file per block, so
that a repeated run does only what is missing. `sconce.ray.serve` is the deployment for Ray Serve.
"""

from .placement import map_options
from .runs import Summary, classify, embed, generate, rerank
from .stages import Classify, Embed, Generate, Rerank, Stage

__all__ = [
    "Classify",
    "Embed",
    "Generate",
    "Rerank",
    "Stage",
    "Summary",
    "classify",
    "embed",
    "generate",
    "map_options",
    "rerank",
]
