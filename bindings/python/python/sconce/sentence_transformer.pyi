"""`SentenceTransformer`: dense embeddings with the API of sentence-transformers."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from .base_model import EmbeddingModel, ModelOptions
from .models import Path, Precision, Texts

class SentenceTransformer(EmbeddingModel):
    truncate_dim: int | None
    def __init__(
        self,
        model_name_or_path: Path,
        *,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
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
    encode_document = encode_query
    def truncate_embeddings(self, truncate_dim: int | None) -> AbstractContextManager[None]: ...
    def truncate_sentence_embeddings(self, truncate_dim: int | None) -> AbstractContextManager[None]: ...
    def tokenize(self, texts: Any) -> dict[str, NDArray[np.int64]]: ...

def quantize_embeddings(embeddings: Any, precision: Precision, ranges: Any = None, calibration_embeddings: Any = None) -> NDArray[Any]: ...
