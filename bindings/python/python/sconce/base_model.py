"""`BaseModel`: what the classes with the API of sentence-transformers share."""

import functools
import json
import operator
from pathlib import Path

from . import _sconce
from .errors import InputError
from .models import Model, device_name

# Models of transformers that sentence-transformers does not look for in an organisation.
_ORIGINAL = frozenset(
    """
    albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v1 albert-xlarge-v2 albert-xxlarge-v1
    albert-xxlarge-v2 bert-base-cased-finetuned-mrpc bert-base-cased bert-base-chinese bert-base-german-cased
    bert-base-german-dbmdz-cased bert-base-german-dbmdz-uncased bert-base-multilingual-cased
    bert-base-multilingual-uncased bert-base-uncased bert-large-cased-whole-word-masking-finetuned-squad
    bert-large-cased-whole-word-masking bert-large-cased bert-large-uncased-whole-word-masking-finetuned-squad
    bert-large-uncased-whole-word-masking bert-large-uncased camembert-base ctrl distilbert-base-cased-distilled-squad
    distilbert-base-cased distilbert-base-german-cased distilbert-base-multilingual-cased
    distilbert-base-uncased-distilled-squad distilbert-base-uncased-finetuned-sst-2-english distilbert-base-uncased
    distilgpt2 distilroberta-base gpt2-large gpt2-medium gpt2-xl gpt2 openai-gpt roberta-base-openai-detector
    roberta-base roberta-large-mnli roberta-large-openai-detector roberta-large t5-11b t5-3b t5-base t5-large t5-small
    transfo-xl-wt103 xlm-clm-ende-1024 xlm-clm-enfr-1024 xlm-mlm-100-1280 xlm-mlm-17-1280 xlm-mlm-en-2048
    xlm-mlm-ende-1024 xlm-mlm-enfr-1024 xlm-mlm-enro-1024 xlm-mlm-tlm-xnli15-1024 xlm-mlm-xnli15-1024 xlm-roberta-base
    xlm-roberta-large-finetuned-conll02-dutch xlm-roberta-large-finetuned-conll02-spanish
    xlm-roberta-large-finetuned-conll03-english xlm-roberta-large-finetuned-conll03-german xlm-roberta-large
    xlnet-base-cased xlnet-large-cased
    """.split()
)


def renamed(**names):
    """Accepts keyword arguments by their older names: `renamed(sentences="inputs")`."""

    def decorate(function):
        @functools.wraps(function)
        def call(*arguments, **options):
            for old, new in names.items():
                if old in options:
                    value = options.pop(old)
                    options.setdefault(new, value)
            return function(*arguments, **options)

        call.renamed = names
        return call

    return decorate


class BaseModel(Model):
    """A model with prompts, loaded by the name that sentence-transformers gives it."""

    # Where names without an organisation are looked up.
    _organization = None
    # Prompts that every model of the class has, empty unless its files or the caller say otherwise.
    _own_prompts = ()

    @renamed(tokenizer_kwargs="processor_kwargs", use_auth_token="token")
    def __init__(
        self,
        model_name_or_path,
        *,
        device=None,
        prompts=None,
        default_prompt_name=None,
        cache_folder=None,
        trust_remote_code=False,
        revision=None,
        local_files_only=False,
        token=None,
        model_kwargs=None,
        processor_kwargs=None,
        config_kwargs=None,
        backend="torch",
        dtype=None,
        fallback=False,
        batch_tokens=None,
        engine=None,
        onnx_file=None,
        batch_dependent=False,
    ):
        # `trust_remote_code` changes nothing: no code of a model is ever run.
        if backend not in ("torch", "sconce", "onnx"):
            raise InputError(f"backend `{backend}` is not supported; leave it out, or take `onnx`")
        if backend == "onnx":
            if engine not in (None, "onnx"):
                raise InputError(f"backend `onnx` and engine `{engine}` contradict each other; leave one of them out")
            # As sentence-transformers takes the file.
            model_kwargs = dict(model_kwargs or {})
            engine, onnx_file = "onnx", model_kwargs.pop("file_name", None) or onnx_file
        _refuse_kwargs("processor_kwargs", processor_kwargs)
        _refuse_kwargs("config_kwargs", config_kwargs)
        self._load(
            full_name(model_name_or_path, self._organization),
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            dtype=dtype or _dtype(model_kwargs),
            fallback=fallback,
            batch_tokens=batch_tokens,
            engine=engine,
            onnx_file=onnx_file,
            batch_dependent=batch_dependent,
        )
        self._max_seq_length = None
        self._config = self._read_json("config_sentence_transformers.json")
        self.prompts = dict.fromkeys(self._own_prompts) | dict(prompts or {})
        for name, text in self._saved_prompts().items():
            if self.prompts.get(name) is None:
                self.prompts[name] = text
        self.prompts = {name: text or "" for name, text in self.prompts.items()}
        self.default_prompt_name = default_prompt_name or self._saved_default_prompt()
        if self.default_prompt_name is not None:
            self._named_prompt(self.default_prompt_name)

    @property
    def max_seq_length(self):
        """Texts are truncated at this many tokens; it can be set to less than the model's limit."""
        return self._max_seq_length or self._info["max_tokens"]

    @max_seq_length.setter
    def max_seq_length(self, value):
        most = self._info["max_tokens"]
        self._max_seq_length = None if value is None else min(operator.index(value), most or operator.index(value))

    def get_max_seq_length(self):
        """The same as `max_seq_length`."""
        return self.max_seq_length

    def _similarity_name(self, given, names):
        """The similarity function: that of the caller, of the model's files, or the first of `names`."""
        given = getattr(given, "value", given)  # An enum in sentence-transformers.
        if given is not None and given not in names:
            raise InputError(f"similarity_fn_name `{given}` is not supported; use one of {', '.join(names)}")
        saved = str(self._config.get("similarity_fn_name")).lower()
        return given or (saved if saved in names else names[0])

    def _saved_prompts(self):
        """The prompts of the model's files."""
        return self._config.get("prompts") or {}

    def _saved_default_prompt(self):
        return self._config.get("default_prompt_name")

    def _named_prompt(self, name):
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise InputError(f"prompt name `{name}` is not one of the model's prompts: {known}")
        return self.prompts[name]

    def _resolve_prompt(self, name, text):
        """The text before each input."""
        if text is not None:
            return text
        if name is not None:
            return self._named_prompt(name)
        return self.prompts.get(self.default_prompt_name, "")

    def _check_call(self, device, pool=None, chunk_size=None):
        """Refuses what this engine cannot do in a call."""
        if pool is not None or chunk_size is not None or isinstance(device, (list, tuple)):
            raise InputError("multi-process pools are not supported: the engine uses all CPU cores by itself")
        if device is None:
            return
        name = device_name(device)
        wanted = name if name == "cpu" or ":" in name else f"{name}:0"
        if wanted != self.device:
            raise InputError(f"the model is on {self.device}; load it with device={name!r} instead")

    def _read_json(self, name):
        """A JSON file beside the model's weights; an empty object where there is none."""
        path = Path(self._info["root"]) / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


class EmbeddingModel(BaseModel):
    """A model whose method `encode` embeds texts."""

    _own_prompts = ("query", "document")

    @renamed(sentences="inputs")
    def encode_query(self, inputs, prompt_name=None, prompt=None, *arguments, **options):
        """`encode` with the prompt `query`. The further arguments are those of `encode`."""
        if prompt_name is None and prompt is None and "query" in self.prompts:
            prompt_name = "query"
        return self.encode(inputs, prompt_name, prompt, *arguments, task="query", **options)

    @renamed(sentences="inputs")
    def encode_document(self, inputs, prompt_name=None, prompt=None, *arguments, **options):
        """`encode` with the prompt `document`, `passage` or `corpus`, the first that there is."""
        if prompt_name is None and prompt is None:
            prompt_name = next((name for name in ("document", "passage", "corpus") if name in self.prompts), None)
        return self.encode(inputs, prompt_name, prompt, *arguments, task="document", **options)


def full_name(name, organization):
    """The name to load: a short name of ours, or with the organisation that sentence-transformers adds."""
    text = str(name)
    short = {entry["name"]: entry["repo"] for entry in json.loads(_sconce.short_names())}
    if text.split("@")[0] in short or text.startswith("pip:") or text.endswith(".gguf") or Path(text).exists():
        return name
    if organization is not None and "/" not in text and text.lower() not in _ORIGINAL:
        text = f"{organization}/{text}"
    # A short name can be found in more places than the repository that it stands for.
    return next((key for key, repo in short.items() if repo == text), text)


def _refuse_kwargs(what, given):
    if given:
        raise InputError(f"{what}: {', '.join(given)} cannot be honoured; leave it out")


def _dtype(model_kwargs):
    """The dtype in `model_kwargs`, which may hold nothing else."""
    rest = dict(model_kwargs or {})
    given = [value for value in (rest.pop("torch_dtype", None), rest.pop("dtype", None)) if value is not None]
    if rest:
        raise InputError(f"model_kwargs: {', '.join(rest)} cannot be honoured; only `dtype` can")
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "auto": None}
    name = str(given[0]).removeprefix("torch.") if given else None
    return names.get(name, name)


def tensors(values):
    """A torch tensor that shares the memory of an array."""
    import numpy
    import torch

    return torch.from_numpy(numpy.ascontiguousarray(values))
