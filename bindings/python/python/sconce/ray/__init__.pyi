"""Sconce on Ray: callable classes for Ray Data's `map_batches`, and runs that can be repeated."""

from .placement import map_options as map_options
from .runs import Summary as Summary, classify as classify, embed as embed, generate as generate, rerank as rerank
from .stages import Classify as Classify, Embed as Embed, Generate as Generate, Rerank as Rerank, Stage as Stage

__all__: list[str]
