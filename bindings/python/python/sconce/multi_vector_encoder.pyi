"""`MultiVectorEncoder`: an embedding per token (ColBERT), compared by MaxSim."""

from typing import Any

from typing_extensions import Unpack

from .base_model import EmbeddingModel, ModelOptions
from .models import Hits, Path, Texts

class MultiVectorEncoder(EmbeddingModel):
    def __init__(
        self,
        model_name_or_path: Path,
        *,
        similarity_fn_name: str | None = None,
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
        output_value: str = 'token_embeddings',
        convert_to_numpy: bool = True,
        device: str | None = None,
        normalize_embeddings: bool = False,
        pool: None = None,
        chunk_size: None = None,
        token_pooling: None = None,
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
        output_value: str = 'token_embeddings',
        convert_to_numpy: bool = True,
        device: str | None = None,
        normalize_embeddings: bool = False,
        pool: None = None,
        chunk_size: None = None,
        token_pooling: None = None,
        *,
        sentences: Texts = ...,
    ) -> Any: ...
    encode_document = encode_query
    def rank(self, query: str, documents: Texts, top_k: int | None = None, return_documents: bool = False) -> Hits: ...
