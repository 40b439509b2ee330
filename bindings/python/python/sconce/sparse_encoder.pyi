"""`SparseEncoder`: sparse embeddings (SPLADE) with the API of sentence-transformers."""

from typing import Any

from typing_extensions import Unpack

from .base_model import EmbeddingModel, ModelOptions
from .models import Path, Texts

class SparseEncoder(EmbeddingModel):
    max_active_dims: int | None
    def __init__(
        self,
        model_name_or_path: Path,
        *,
        similarity_fn_name: str | None = None,
        max_active_dims: int | None = None,
        device: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None: ...
    def encode(
        self,
        inputs: Texts = ...,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: str | None = None,
        max_active_dims: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        task: str | None = None,
        sentences: Texts = ...,
    ) -> Any: ...
    def encode_query(
        self,
        inputs: Texts = ...,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        convert_to_sparse_tensor: bool = True,
        save_to_cpu: bool = False,
        device: str | None = None,
        max_active_dims: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        sentences: Texts = ...,
    ) -> Any: ...
    encode_document = encode_query
    def decode(self, embeddings: Any, top_k: int | None = None) -> Any: ...
    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> Any: ...
    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]: ...
