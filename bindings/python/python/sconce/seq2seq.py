"""`Seq2Seq`: sequence-to-sequence models (T5)."""

import asyncio
import json

from . import _sconce
from .background import in_background
from .json_options import to_json
from .llm import Stream, sampling
from .models import Model
from .texts import as_texts

_OPTIONS = ("num_beams", "length_penalty", "early_stopping", "num_return_sequences", "max_tokens")


class Seq2Seq(Model):
    """A model that makes a text from a text: translation, summaries, answers."""

    _task = "seq2seq"

    def __init__(
        self,
        model,
        *,
        device=None,
        dtype=None,
        max_input_tokens=None,
        max_output_tokens=None,
        sequences=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        fallback=False,
    ):
        self._load(
            model,
            device=device,
            dtype=dtype,
            max_input_tokens=max_input_tokens,
            max_output_tokens=max_output_tokens,
            sequences=sequences,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            fallback=fallback,
        )

    def generate(self, inputs, **options):
        """The best answer to each text: a list, or a str for a single text.

        By default the search is that of the model's files. `num_beams` (with `length_penalty`,
        `early_stopping`) is a beam search, 1 greedy; sampling parameters are those of `Llm`.
        """
        texts, is_single = as_texts(inputs)
        return _best(self.generate_all(texts, **options), is_single)

    def generate_all(self, inputs, **options):
        """All answers to each text, best first: dicts of `text`, `ids` and `score`."""
        return self._generate_all(inputs, options, None)

    def stream(self, text, **options):
        """Iterates over the pieces of the answer; not for a beam search."""
        return Stream(_sconce.seq2seq_stream(self._model, text, _options(options)))

    async def agenerate(self, inputs, **options):
        """`generate` for asyncio. Cancelling the task cancels the request."""
        texts, is_single = as_texts(inputs)
        return _best(await self.agenerate_all(texts, **options), is_single)

    async def agenerate_all(self, inputs, **options):
        """`generate_all` for asyncio. Cancelling the task cancels the request."""
        cancellation = _sconce.Cancellation()
        try:
            return await in_background(self._generate_all, inputs, options, cancellation)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    async def astream(self, text, **options):
        """`stream` for asyncio."""
        async for piece in await in_background(self.stream, text, **options):
            yield piece

    def _generate_all(self, inputs, options, cancellation):
        texts, _ = as_texts(inputs)
        return json.loads(_sconce.seq2seq(self._model, texts, _options(options), cancellation))


def _best(rows, is_single):
    """The best answer to each text."""
    best = [answers[0]["text"] if answers else "" for answers in rows]
    return best[0] if is_single else best


def _options(options):
    options = dict(options)
    given = {name: options.pop(name) for name in _OPTIONS if options.get(name) is not None}
    params = sampling(options)
    unknown = [name for name in options if options[name] is not None]
    if unknown:
        raise TypeError(f"unexpected arguments: {', '.join(unknown)}")
    if params:
        given["sampling"] = params
    return to_json(given)
