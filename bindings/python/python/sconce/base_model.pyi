"""`BaseModel`: what the classes with the API of sentence-transformers share."""

from typing import Any, Literal, TypedDict, type_check_only

from typing_extensions import Unpack

from .models import Model, Path

@type_check_only
class ModelOptions(TypedDict, total=False):
    """Options for loading, by their names and older ones."""

    prompts: dict[str, str] | None
    default_prompt_name: str | None
    cache_folder: Path | None
    trust_remote_code: bool
    revision: str | None
    local_files_only: bool
    token: str | bool | None
    model_kwargs: dict[str, Any] | None
    processor_kwargs: dict[str, Any] | None
    config_kwargs: dict[str, Any] | None
    backend: str
    dtype: str | None
    fallback: bool
    batch_tokens: int | None
    engine: Literal["auto", "native", "onnx"] | None
    onnx_file: Path | None
    batch_dependent: bool
    tokenizer_kwargs: dict[str, Any] | None
    use_auth_token: str | bool | None

class BaseModel(Model):
    prompts: dict[str, str]
    default_prompt_name: str | None
    max_seq_length: int
    def __init__(
        self, model_name_or_path: Path, *, device: str | None = None, **options: Unpack[ModelOptions]
    ) -> None: ...
    def get_max_seq_length(self) -> int: ...

class EmbeddingModel(BaseModel):
    similarity_fn_name: str
    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...
