"""`Llm`: language models."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Literal

from .models import Model, Path

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

class Llm(Model):
    context: int
    def __init__(
        self,
        model: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        context: int | None = None,
        cache_tokens: int | None = None,
        cache_format: str | None = None,
        sequences: int | None = None,
        cache_folder: Path | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        fallback: bool = False,
    ) -> None: ...
    def generate(self, prompt: Any, **options: Any) -> Any: ...
    def chat(
        self,
        messages: str | list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Any: ...
    def stream(self, prompt: Any, *, tools: list[dict[str, Any]] | None = None, **options: Any) -> Stream: ...
    async def agenerate(self, prompt: Any, **options: Any) -> Any: ...
    async def achat(
        self,
        messages: str | list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Any: ...
    def astream(
        self,
        prompt: Any,
        *,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncIterator[str]: ...
    def render(self, messages: str | list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> str: ...
    def tokenize(self, text: str, special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: Iterable[int], skip_special: bool = True) -> str: ...
