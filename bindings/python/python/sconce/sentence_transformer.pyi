"""`SentenceTransformer`: dense embeddings with the API of sentence-transformers."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base_model import BaseModel
from .models import Path, Precision, Texts

class SentenceTransformer(BaseModel):
    similarity_fn_name: str
    truncate_dim: int | None
    def __init__(
        self,
        model_name_or_path: Path,
        *,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
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
        output_value: str = 'sentence_embedding',
        precision: Precision = 'float32',
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        task: str | None = None,
        pooling: str | None = None,
        sentences: Texts = ...,
    ) -> Any: ...
    def encode_query(
        self,
        inputs: Texts = ...,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = 'sentence_embedding',
        precision: Precision = 'float32',
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        pooling: str | None = None,
        sentences: Texts = ...,
    ) -> Any: ...
    def encode_document(
        self,
        inputs: Texts = ...,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = 'sentence_embedding',
        precision: Precision = 'float32',
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        pooling: str | None = None,
        sentences: Texts = ...,
    ) -> Any: ...
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...
    def truncate_embeddings(self, truncate_dim: int | None) -> AbstractContextManager[None]: ...
    def truncate_sentence_embeddings(self, truncate_dim: int | None) -> AbstractContextManager[None]: ...
    def tokenize(self, texts: Any) -> dict[str, NDArray[np.int64]]: ...

def quantize_embeddings(embeddings: Any, precision: Precision, ranges: Any = None, calibration_embeddings: Any = None) -> NDArray[Any]: ...
