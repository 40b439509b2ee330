"""`Clip`: image–text embeddings (CLIP, SigLIP)."""

from typing import Any

from .models import Floats, Model, Path

class Clip(Model):
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
    ) -> None: ...
    def encode_text(self, texts: Any) -> Floats: ...
    def encode_image(self, images: Any) -> Floats: ...
    def classify(self, images: Any, texts: Any) -> Any: ...
    def get_embedding_dimension(self) -> int: ...
