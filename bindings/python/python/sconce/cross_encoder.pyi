"""`CrossEncoder`: scores of text pairs with the API of sentence-transformers."""

from collections.abc import Callable
from typing import Any

from typing_extensions import Unpack

from .base_model import BaseModel, ModelOptions
from .models import Hits, Pairs, Path, Texts

class CrossEncoder(BaseModel):
    num_labels: int
    max_length: int
    activation_fn: Callable[[Any], Any]
    @property
    def default_activation_function(self) -> Callable[[Any], Any]: ...
    def __init__(
        self,
        model_name_or_path: Path = ...,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        device: str | None = None,
        *,
        model_name: Path = ...,
        automodel_args: dict[str, Any] | None = None,
        tokenizer_args: dict[str, Any] | None = None,
        config_args: dict[str, Any] | None = None,
        cache_dir: Path | None = None,
        default_activation_function: Callable[[Any], Any] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None: ...
    def predict(
        self,
        inputs: Pairs = ...,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        num_workers: int | None = None,
        sentences: Pairs = ...,
        activation_fct: Callable[[Any], Any] | None = None,
    ) -> Any: ...
    def rank(
        self,
        query: str,
        documents: Texts,
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        device: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        *,
        apply_softmax: bool | None = None,
        convert_to_numpy: bool | None = None,
        convert_to_tensor: bool | None = None,
        num_workers: int | None = None,
        activation_fct: Callable[[Any], Any] | None = None,
    ) -> Hits: ...
