"""`Llm`: language models."""

import json
from dataclasses import dataclass, field

from . import _sconce
from .background import in_background
from .errors import InputError
from .json_options import to_json
from .models import Model

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "seed",
    "n",
    "logprobs",
)
_FORMATS = ("json_object", "schema", "regex", "grammar")


@dataclass
class ToolCall:
    """A call of a function that the model asks for."""

    name: str
    arguments: dict


@dataclass
class Answer:
    """An answer. `str(answer)` is its text."""

    text: str = ""
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    finish: str = None  # "end", "length" or "stop"
    score: float = None
    prompt_tokens: int = 0
    tool_calls: list = field(default_factory=list)

    def __str__(self):
        return self.text


def sampling(options):
    """Takes the sampling parameters out of `options`."""
    given = {name: options.pop(name) for name in _SAMPLING if options.get(name) is not None}
    if "logit_bias" in given:
        given["logit_bias"] = {str(token): bias for token, bias in given["logit_bias"].items()}
    return given


class Stream:
    """Pieces of an answer as they are generated. `close` cancels the rest."""

    def __init__(self, native):
        self._native = native
        self.answers = []

    @property
    def answer(self):
        """The first answer, as far as it is generated."""
        return self._answer(0)

    def parts(self):
        """Index and new text of the answer that grows."""
        while (part := self._native.next()) is not None:
            index, text, ids, logprobs, finish, score = part
            answer = self._answer(index)
            answer.text += text
            answer.tokens += ids
            answer.logprobs += [logprob for logprob in logprobs if logprob is not None]
            if finish is not None:
                answer.finish, answer.score = finish, score
            elif text:
                yield index, text

    def __iter__(self):
        return (text for _, text in self.parts())

    async def __aiter__(self):
        parts = self.parts()
        try:
            while (part := await in_background(next, parts, None)) is not None:
                yield part[1]
        finally:
            # Also if the task was cancelled: nobody reads the rest.
            self.close()

    def wait(self):
        """Generates the rest and returns all answers."""
        for _ in self.parts():
            pass
        self.answer  # An answer without any text.
        return self.answers

    def close(self):
        """Cancels the request."""
        self._native.close()

    def _answer(self, index):
        while len(self.answers) <= index:
            self.answers.append(Answer(prompt_tokens=self._native.prompt_tokens))
        return self.answers[index]


class Llm(Model):
    """A language model. Requests of all threads and tasks run together (continuous batching).

    Methods take sampling parameters (`temperature`, `top_p`, `top_k`, `min_p`, `seed`, `n`,
    `repetition_penalty`, `frequency_penalty`, `presence_penalty`, `logit_bias`, `logprobs`; by
    default what the model's files recommend), `max_tokens`, `stop`, and one of `schema`, `regex`,
    `grammar` and `json_object` for structured output.
    """

    _task = "generate"

    def __init__(
        self,
        model,
        *,
        device=None,
        dtype=None,
        context=None,
        cache_tokens=None,
        cache_format=None,
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
            context=context,
            cache_tokens=cache_tokens,
            cache_format=cache_format,
            sequences=sequences,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            fallback=fallback,
        )

    @property
    def context(self):
        """The longest sequence, prompt and answer together."""
        return self._info["context"]

    def generate(self, prompt, **options):
        """Continues a text, or a list of token ids. `n` above 1 gives a list of answers."""
        return _result(self._start(prompt, options).wait(), options)

    def chat(self, messages, *, tools=None, **options):
        """Answers a conversation: a text, or a list of messages with `role` and `content`.

        `tools` are JSON schemas of functions; the calls are in `tool_calls` of the answer.
        """
        return self._chat_result(self._start_chat(messages, tools, options).wait(), tools, options)

    def stream(self, prompt, *, tools=None, **options):
        """Iterates over the pieces of an answer: to messages (a list of dicts) or to a prompt."""
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        if prompt and isinstance(prompt[0], dict):
            return self._start_chat(prompt, tools, options)
        return self._start(prompt, options)

    async def agenerate(self, prompt, **options):
        """`generate` for asyncio. Cancelling the task cancels the request."""
        return _result(await _wait(await in_background(self._start, prompt, options)), options)

    async def achat(self, messages, *, tools=None, **options):
        """`chat` for asyncio. Cancelling the task cancels the request."""
        answers = await _wait(await in_background(self._start_chat, messages, tools, options))
        return self._chat_result(answers, tools, options)

    async def astream(self, prompt, *, tools=None, **options):
        """`stream` for asyncio."""
        async for text in await in_background(self.stream, prompt, tools=tools, **options):
            yield text

    def render(self, messages, *, tools=None):
        """The prompt that the chat template makes of messages."""
        request = {"messages": _messages(messages), "tools": tools}
        return _sconce.render_chat(self._model, to_json(request))

    def tokenize(self, text, special=False):
        """The token ids of a text."""
        return self._model.tokenize(text, special)[0]

    def detokenize(self, tokens, skip_special=True):
        """The text of token ids."""
        return self._model.detokenize(list(tokens), skip_special)

    def _start_chat(self, messages, tools, options):
        return self._request({"messages": _messages(messages), "tools": tools}, options)

    def _start(self, prompt, options):
        if isinstance(prompt, str):
            return self._request({"prompt": prompt}, options)
        return self._request({"tokens": [int(token) for token in prompt]}, options)

    def _request(self, request, options):
        options = dict(options)
        request["sampling"] = sampling(options)
        stop = options.pop("stop", None) or []
        request["stop"] = [stop] if isinstance(stop, str) else list(stop)
        formats = [name for name in _FORMATS if options.get(name) not in (None, False)]
        if len(formats) > 1:
            raise InputError(f"an answer has one format, not {' and '.join(formats)}")
        for name in ("max_tokens", "ignore_end", "template_options", *_FORMATS):
            value = options.pop(name, None)
            if value is not None:
                request[name] = value
        if options:
            raise TypeError(f"unexpected arguments: {', '.join(options)}")
        return Stream(_sconce.generate(self._model, to_json(request)))

    def _chat_result(self, answers, tools, options):
        for answer in answers if tools else []:
            names = [tool.get("function", tool)["name"] for tool in tools]
            answer.text, calls = _sconce.parse_tool_calls(self._model, answer.text, answer.tokens, names)
            answer.tool_calls = [ToolCall(name, _arguments(arguments)) for name, arguments in calls]
        return _result(answers, options)


async def _wait(stream):
    """`Stream.wait` for asyncio."""
    async for _ in stream:
        pass
    stream.answer
    return stream.answers


def _result(answers, options):
    return answers if (options.get("n") or 1) > 1 else answers[0]


def _messages(messages):
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    messages = list(messages)
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise TypeError('messages must be a str or a list of {"role": …, "content": …}')
    return messages


def _arguments(text):
    try:
        return json.loads(text)
    except ValueError:
        return {"": text}  # The model wrote no JSON.
