"""Types of loaded models, and of arguments."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

Path = str | PathLike[str]
Texts = str | Sequence[str] | NDArray[Any] | Any
Pairs = Sequence[str] | Sequence[Sequence[str]] | NDArray[Any]
Floats = NDArray[np.float32]
Hits = list[dict[str, Any]]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

class Model:
    def __init__(
        self,
        model: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        cache_folder: Path | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        fallback: bool = False,
        batch_tokens: int | None = None,
        engine: Literal["auto", "native", "onnx"] | None = None,
        onnx_file: Path | None = None,
        batch_dependent: bool = False,
    ) -> None: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def counts(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: Any) -> None: ...
