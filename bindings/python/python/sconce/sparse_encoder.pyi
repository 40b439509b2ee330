"""`SparseEncoder`: sparse embeddings (SPLADE) with the API of sentence-transformers."""

from typing import Any

from .base_model import BaseModel
from .models import Path, Texts

class SparseEncoder(BaseModel):
    similarity_fn_name: str
    max_active_dims: int | None
    def __init__(
        self,
        model_name_or_path: Path,
        *,
        similarity_fn_name: str | None = None,
        max_active_dims: int | None = None,
        device: str | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: Path | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        backend: str = "torch",
        dtype: str | None = None,
        fallback: bool = False,
        batch_tokens: int | None = None,
        tokenizer_kwargs: dict[str, Any] | None = None,
        use_auth_token: str | bool | None = None,
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
    def encode_document(
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
    def decode(self, embeddings: Any, top_k: int | None = None) -> Any: ...
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    @staticmethod
    def intersection(embeddings_1: Any, embeddings_2: Any) -> Any: ...
    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...
