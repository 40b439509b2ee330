"""Types of the package."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_Path = str | PathLike[str]
_Texts = str | Sequence[str] | NDArray[Any] | Any
_Floats = NDArray[np.float32]
_Hits = list[dict[str, Any]]
_Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

__version__: str
__all__: list[str]

class SconceError(Exception): ...
class InputError(SconceError, ValueError): ...
class FilesError(SconceError, OSError): ...
class DeviceError(SconceError, RuntimeError): ...
class UnsoundError(SconceError, ArithmeticError): ...
class CancelledError(SconceError): ...
class ClosedError(SconceError, ValueError): ...

class _Model:
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def counts(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> None: ...

class SentenceTransformer(_Model):
    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity_fn_name: str
    truncate_dim: int | None
    max_seq_length: int
    def __init__(
        self,
        model_name_or_path: _Path,
        *,
        device: str | None=None,
        prompts: dict[str, str] | None=None,
        default_prompt_name: str | None=None,
        similarity_fn_name: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        truncate_dim: int | None=None,
        model_kwargs: dict[str, Any] | None=None,
        backend: str='torch',
        dtype: str | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def get_max_seq_length(self) -> int: ...
    def encode(
        self,
        inputs: _Texts | None=None,
        prompt_name: str | None=None,
        prompt: str | None=None,
        batch_size: int=32,
        show_progress_bar: bool | None=None,
        output_value: str='sentence_embedding',
        precision: _Precision='float32',
        convert_to_numpy: bool=True,
        convert_to_tensor: bool=False,
        device: str | None=None,
        normalize_embeddings: bool=False,
        truncate_dim: int | None=None,
        *,
        sentences: Any=None,
        pooling: str | None=None,
    ) -> Any: ...
    def encode_query(
        self,
        inputs: _Texts | None,
        prompt_name: str | None=None,
        prompt: str | None=None,
        **options: Any,
    ) -> Any: ...
    def encode_document(
        self,
        inputs: _Texts | None,
        prompt_name: str | None=None,
        prompt: str | None=None,
        **options: Any,
    ) -> Any: ...
    def similarity(self, embeddings1: Any, embeddings2: Any) -> _Floats: ...
    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> _Floats: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...
    def tokenize(self, texts: Any) -> dict[str, NDArray[np.int64]]: ...

class CrossEncoder(_Model):
    num_labels: int
    max_length: int | None
    activation_fn: Callable[[Any], Any]
    def __init__(
        self,
        model_name_or_path: _Path,
        *,
        num_labels: int | None=None,
        max_length: int | None=None,
        device: str | None=None,
        activation_fn: Callable[[Any], Any] | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        model_kwargs: dict[str, Any] | None=None,
        dtype: str | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def predict(
        self,
        inputs: _Texts | None=None,
        batch_size: int=32,
        show_progress_bar: bool | None=None,
        activation_fn: Callable[[Any], Any] | None=None,
        apply_softmax: bool=False,
        convert_to_numpy: bool=True,
        convert_to_tensor: bool=False,
        *,
        sentences: Any=None,
    ) -> Any: ...
    def rank(
        self,
        query: str,
        documents: Any,
        top_k: int | None=None,
        return_documents: bool=False,
        batch_size: int=32,
        show_progress_bar: bool | None=None,
        activation_fn: Callable[[Any], Any] | None=None,
        apply_softmax: bool=False,
        **_: Any,
    ) -> _Hits: ...

class SparseEncoder(_Model):
    similarity_fn_name: str
    max_active_dims: int | None
    max_seq_length: int
    def __init__(
        self,
        model_name_or_path: _Path,
        *,
        device: str | None=None,
        similarity_fn_name: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        max_active_dims: int | None=None,
        model_kwargs: dict[str, Any] | None=None,
        dtype: str | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def encode(
        self,
        inputs: _Texts | None=None,
        batch_size: int=32,
        show_progress_bar: bool | None=None,
        convert_to_tensor: bool=False,
        convert_to_sparse_tensor: bool=True,
        max_active_dims: int | None=None,
        *,
        sentences: Any=None,
    ) -> Any: ...
    def encode_query(self, inputs: _Texts | None, **options: Any) -> Any: ...
    def encode_document(self, inputs: _Texts | None, **options: Any) -> Any: ...
    def decode(self, embeddings: Any, top_k: int | None=None) -> Any: ...
    def similarity(self, embeddings1: Any, embeddings2: Any) -> _Floats: ...
    @staticmethod
    def sparsity(embeddings: Any) -> dict[str, float]: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...

class MultiVectorEncoder(_Model):
    def __init__(
        self,
        model_name_or_path: _Path,
        *,
        device: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        model_kwargs: dict[str, Any] | None=None,
        dtype: str | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def encode(
        self,
        inputs: _Texts | None,
        is_query: bool=False,
        batch_size: int=32,
        show_progress_bar: bool | None=None,
        convert_to_tensor: bool=False,
    ) -> Any: ...
    def encode_query(self, inputs: _Texts | None, **options: Any) -> Any: ...
    def encode_document(self, inputs: _Texts | None, **options: Any) -> Any: ...
    def similarity(self, queries: Any, documents: Any) -> _Floats: ...
    def similarity_pairwise(self, queries: Any, documents: Any) -> _Floats: ...
    def rank(self, query: str, documents: Any, top_k: int | None=None, return_documents: bool=False) -> _Hits: ...
    def get_sentence_embedding_dimension(self) -> int: ...
    def get_embedding_dimension(self) -> int: ...

class Llm(_Model):
    context: int
    def __init__(
        self,
        model: _Path,
        *,
        device: str | None=None,
        dtype: str | None=None,
        context: int | None=None,
        cache_tokens: int | None=None,
        cache_format: str | None=None,
        sequences: int | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        fallback: bool=False,
    ) -> None: ...
    def generate(self, prompt: Any, **options: Any) -> Any: ...
    def chat(
        self,
        messages: str | list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None=None,
        **options: Any,
    ) -> Any: ...
    def stream(self, prompt: Any, *, tools: list[dict[str, Any]] | None=None, **options: Any) -> Stream: ...
    async def agenerate(self, prompt: Any, **options: Any) -> Any: ...
    async def achat(
        self,
        messages: str | list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None=None,
        **options: Any,
    ) -> Any: ...
    async def astream(
        self,
        prompt: Any,
        *,
        tools: list[dict[str, Any]] | None=None,
        **options: Any,
    ) -> AsyncIterator[str]: ...
    def render(self, messages: str | list[dict[str, Any]], *, tools: list[dict[str, Any]] | None=None) -> str: ...
    def tokenize(self, text: str, special: bool=False) -> list[int]: ...
    def detokenize(self, tokens: Iterable[int], skip_special: bool=True) -> str: ...

class Seq2Seq(_Model):
    def __init__(
        self,
        model: _Path,
        *,
        device: str | None=None,
        dtype: str | None=None,
        max_input_tokens: int | None=None,
        max_output_tokens: int | None=None,
        sequences: int | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        fallback: bool=False,
    ) -> None: ...
    def generate(self, inputs: _Texts | None, **options: Any) -> Any: ...
    def generate_all(self, inputs: _Texts | None, **options: Any) -> list[list[dict[str, Any]]]: ...
    def stream(self, text: str, **options: Any) -> Stream: ...

class Classifier(_Model):
    labels: list[str]
    def __init__(
        self,
        model: _Path,
        *,
        device: str | None=None,
        dtype: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def classify(self, inputs: _Texts | None, top_k: int | None=None, raw: bool=False) -> Any: ...
    def __call__(self, inputs: _Texts | None, top_k: int | None=None, raw: bool=False) -> Any: ...
    def logits(self, inputs: _Texts | None) -> _Floats: ...

class Tagger(_Model):
    labels: list[str]
    def __init__(
        self,
        model: _Path,
        *,
        device: str | None=None,
        dtype: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def tag(self, inputs: _Texts | None, strategy: str='simple', threshold: float=0.0) -> Any: ...
    def __call__(self, inputs: _Texts | None, strategy: str='simple', threshold: float=0.0) -> Any: ...

class Clip(_Model):
    def __init__(
        self,
        model: _Path,
        *,
        device: str | None=None,
        dtype: str | None=None,
        cache_folder: _Path | None=None,
        revision: str | None=None,
        local_files_only: bool=False,
        token: str | bool | None=None,
        fallback: bool=False,
        batch_tokens: int | None=None,
    ) -> None: ...
    def encode_text(self, texts: Any) -> _Floats: ...
    def encode_image(self, images: Any) -> _Floats: ...
    def classify(self, images: Any, texts: Any) -> Any: ...
    def get_embedding_dimension(self) -> int: ...

class ToolCall:
    name: str
    arguments: dict[str, Any]

class Answer:
    text: str
    tokens: list[int]
    logprobs: list[float]
    finish: Literal["end", "length", "stop"] | None
    score: float | None
    prompt_tokens: int
    tool_calls: list[ToolCall]

class Stream:
    answers: list[Answer]
    @property
    def answer(self) -> Answer: ...
    def parts(self) -> Iterator[tuple[int, str]]: ...
    def __iter__(self) -> Iterator[str]: ...
    def __aiter__(self) -> AsyncIterator[str]: ...
    def wait(self) -> list[Answer]: ...
    def close(self) -> None: ...

class SparseMatrix:
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    data: _Floats
    shape: tuple[int, int]
    def __init__(self, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], shape: Sequence[int]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int | slice) -> SparseMatrix: ...
    def __iter__(self) -> Iterator[SparseMatrix]: ...
    def row(self, i: int) -> tuple[NDArray[np.int64], _Floats]: ...
    def top(self, k: int) -> SparseMatrix: ...
    def to_dense(self) -> _Floats: ...
    def to_scipy(self) -> Any: ...
    def to_torch(self) -> Any: ...
    def __matmul__(self, other: SparseMatrix) -> _Floats: ...

class SparseEmbedding:
    values: _Floats
    indices: NDArray[np.int64]
    def as_object(self) -> dict[str, NDArray[Any]]: ...
    def as_dict(self) -> dict[int, float]: ...

class _Fastembed:
    model_name: str
    def __init__(
        self,
        model_name: str | None = None,
        cache_dir: _Path | None = None,
        threads: int | None = None,
        providers: Sequence[Any] | None = None,
        cuda: bool = False,
        device_ids: list[int] | None = None,
        lazy_load: bool = False,
        *,
        device: str | None = None,
        local_files_only: bool = False,
        dtype: str | None = None,
    ) -> None: ...
    @property
    def model(self) -> Any: ...
    def close(self) -> None: ...

class TextEmbedding(_Fastembed):
    def embed(self, documents: str | Iterable[str], batch_size: int = 256, parallel: int | None = None, **_: Any) -> Iterator[_Floats]: ...
    def query_embed(self, query: str | Iterable[str], **_: Any) -> Iterator[_Floats]: ...
    def passage_embed(self, texts: str | Iterable[str], **_: Any) -> Iterator[_Floats]: ...
    @property
    def embedding_size(self) -> int: ...

class SparseTextEmbedding(_Fastembed):
    def embed(self, documents: str | Iterable[str], batch_size: int = 256, parallel: int | None = None, **_: Any) -> Iterator[SparseEmbedding]: ...
    def query_embed(self, query: str | Iterable[str], **options: Any) -> Iterator[SparseEmbedding]: ...
    def passage_embed(self, query: str | Iterable[str], **options: Any) -> Iterator[SparseEmbedding]: ...

class LateInteractionTextEmbedding(_Fastembed):
    def embed(self, documents: str | Iterable[str], batch_size: int = 256, parallel: int | None = None, **_: Any) -> Iterator[_Floats]: ...
    def passage_embed(self, documents: str | Iterable[str], batch_size: int = 256, parallel: int | None = None, **_: Any) -> Iterator[_Floats]: ...
    def query_embed(self, query: str | Iterable[str], **_: Any) -> Iterator[_Floats]: ...
    @property
    def embedding_size(self) -> int: ...

class TextCrossEncoder(_Fastembed):
    def rerank(self, query: str, documents: Iterable[str], batch_size: int = 64, **_: Any) -> Iterator[float]: ...
    def rerank_pairs(self, pairs: Iterable[tuple[str, str]], batch_size: int = 64, parallel: int | None = None, **_: Any) -> Iterator[float]: ...

def counts() -> list[dict[str, Any]]: ...
def devices() -> list[dict[str, Any]]: ...
def doctor(*, device: str | None = None, op: str | None = None) -> dict[str, Any]: ...
def plan(model: _Path, *, task: str | None = None, **options: Any) -> dict[str, Any]: ...
def quantize_embeddings(embeddings: Any, precision: _Precision, ranges: Any = None, calibration_embeddings: Any = None) -> NDArray[Any]: ...
def set_threads(count: int) -> None: ...
def to_arrow(embeddings: NDArray[Any]) -> Any: ...
