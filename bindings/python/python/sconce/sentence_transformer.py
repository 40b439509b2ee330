"""`SentenceTransformer`: dense embeddings with the API of sentence-transformers."""

import json
from pathlib import Path

import numpy

from . import _sconce
from . import similarity as _similarity
from .errors import InputError
from .models import Model
from .texts import as_texts, in_windows

_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def read_json(info, name):
    """A JSON file beside the model's weights; an empty object where there is none."""
    path = Path(info["root"]) / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def dtype_of(model_kwargs):
    """The dtype in sentence-transformers' `model_kwargs`, which may hold nothing else."""
    rest = dict(model_kwargs or {})
    dtype = rest.pop("torch_dtype", rest.pop("dtype", None))
    if rest:
        raise InputError(f"model_kwargs: {', '.join(rest)} cannot be honoured; use `dtype`")
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    dtype = str(dtype).removeprefix("torch.") if dtype is not None else None
    return names.get(dtype, dtype)


class SentenceTransformer(Model):
    """A model that embeds texts.

    `model_name_or_path` is a folder, a .gguf file, a name on the Hugging Face hub, `pip:NAME`, or a
    short name such as `minilm`. Names without an organisation are looked up in
    `sentence-transformers/`, as sentence-transformers does.
    """

    _task = "embed"

    def __init__(
        self,
        model_name_or_path,
        *,
        device=None,
        prompts=None,
        default_prompt_name=None,
        similarity_fn_name=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        truncate_dim=None,
        model_kwargs=None,
        backend="torch",
        dtype=None,
        fallback=False,
        batch_tokens=None,
    ):
        if backend not in ("torch", "sconce"):
            raise InputError(f"backend `{backend}` is not supported; leave it out")
        self._load(
            full_name(model_name_or_path),
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            dtype=dtype or dtype_of(model_kwargs),
            fallback=fallback,
            batch_tokens=batch_tokens,
        )
        config = read_json(self._info, "config_sentence_transformers.json")
        self.prompts = dict(self._info["prompts"]) | dict(prompts or {})
        self.default_prompt_name = default_prompt_name or self._info["default_prompt"]
        if self.default_prompt_name is not None:
            self._prompt_text(self.default_prompt_name)
        self.similarity_fn_name = similarity_fn_name or config.get("similarity_fn_name") or "cosine"
        self.truncate_dim = truncate_dim
        self._max_seq_length = None

    @property
    def max_seq_length(self):
        """Texts are truncated at this many tokens; it can be set to less than the model's limit."""
        return self._max_seq_length or self._info["max_tokens"]

    @max_seq_length.setter
    def max_seq_length(self, value):
        self._max_seq_length = min(int(value), self._info["max_tokens"])

    def get_max_seq_length(self):
        """The same as `max_seq_length`."""
        return self.max_seq_length

    def encode(
        self,
        inputs=None,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        output_value="sentence_embedding",
        precision="float32",
        convert_to_numpy=True,
        convert_to_tensor=False,
        device=None,
        normalize_embeddings=False,
        truncate_dim=None,
        *,
        sentences=None,
        pooling=None,
    ):
        """The embedding of one text (an array), or of several (a matrix with a row for each).

        `batch_size` is accepted and has no effect: the engine packs micro-batches by tokens.
        """
        model = self._model
        if inputs is None:
            inputs = sentences
        if inputs is None:
            raise TypeError("encode() needs texts")
        if precision not in _PRECISIONS:
            raise InputError(f"unknown precision `{precision}`; use one of {', '.join(_PRECISIONS)}")
        if device is not None and not self.device.startswith(str(device).replace("mps", "metal")):
            raise InputError(f"the model is on {self.device}; load it with device={str(device)!r} instead")
        texts, is_single = as_texts(inputs)
        options = {
            "prompt": self._prompt(prompt_name, prompt),
            "normalize": True if normalize_embeddings else None,
            "dimensions": truncate_dim or self.truncate_dim,
            "pooling": pooling,
            "max_tokens": self._max_seq_length,
        }
        if output_value == "token_embeddings":
            return self._tokens(texts, is_single, options, convert_to_tensor)
        if output_value != "sentence_embedding":
            raise InputError(f"output_value {output_value!r}: use 'sentence_embedding' or 'token_embeddings'")
        # Cut without L2 normalization, as sentence-transformers does; with it if asked for.
        if options["dimensions"] is not None and not normalize_embeddings:
            options["dimensions"], cut = None, options["dimensions"]
            if not 1 <= cut <= self._info["dimension"]:
                raise InputError(f"truncate_dim is {cut}; use 1 to {self._info['dimension']}")
        else:
            cut = None
        as_json = json.dumps(options)
        parts = in_windows(lambda part: numpy.asarray(_sconce.embed(model, part, as_json)), texts, show_progress_bar)
        embeddings = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        embeddings = embeddings if cut is None else embeddings[:, :cut]
        if precision != "float32":
            embeddings = quantize_embeddings(embeddings, precision)
        if is_single:
            embeddings = embeddings[0]
        if convert_to_tensor or not convert_to_numpy:
            return _tensors(embeddings, convert_to_tensor or is_single)
        return embeddings

    def encode_query(self, inputs, prompt_name=None, prompt=None, **options):
        """`encode` with the prompt `query`, if the model has one."""
        if prompt_name is None and prompt is None and "query" in self.prompts:
            prompt_name = "query"
        return self.encode(inputs, prompt_name=prompt_name, prompt=prompt, **options)

    def encode_document(self, inputs, prompt_name=None, prompt=None, **options):
        """`encode` with the prompt `document`, `passage` or `corpus`, if the model has one."""
        if prompt_name is None and prompt is None:
            prompt_name = next((n for n in ("document", "passage", "corpus") if n in self.prompts), None)
        return self.encode(inputs, prompt_name=prompt_name, prompt=prompt, **options)

    def similarity(self, embeddings1, embeddings2):
        """The similarity of every embedding with every other, by the model's similarity function."""
        return _similarity.similarity(embeddings1, embeddings2, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1, embeddings2):
        """The similarity of embeddings at the same place."""
        return _similarity.similarity_pairwise(embeddings1, embeddings2, self.similarity_fn_name)

    def get_sentence_embedding_dimension(self):
        """The dimension of an embedding."""
        return self.truncate_dim or self._info["dimension"]

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts):
        """Token ids and attention mask of texts, truncated and padded, as numpy arrays."""
        texts, _ = as_texts(texts)
        rows = [self._model.tokenize(text, True)[0] for text in texts]
        rows = [ids if len(ids) <= self.max_seq_length else ids[: self.max_seq_length - 1] + ids[-1:] for ids in rows]
        width = max(map(len, rows), default=0)
        ids = numpy.zeros((len(rows), width), numpy.int64)
        mask = numpy.zeros((len(rows), width), numpy.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return {"input_ids": ids, "attention_mask": mask}

    def _tokens(self, texts, is_single, options, convert_to_tensor):
        options = {name: options[name] for name in ("prompt", "max_tokens")}
        rows = [numpy.asarray(rows) for rows in _sconce.embed_tokens(self._model, texts, json.dumps(options))]
        rows = [_tensors(row, True) for row in rows] if convert_to_tensor else rows
        return rows[0] if is_single else rows

    def _prompt_text(self, name):
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise InputError(f"prompt name `{name}` is not one of the model's prompts: {known}")
        return self.prompts[name]

    def _prompt(self, name, text):
        """The text before each input; `None` for the default of the model's files."""
        if text is not None:
            return text
        name = name or self.default_prompt_name
        return self._prompt_text(name) if name is not None else None


def full_name(name):
    """Names of sentence-transformers' own models may lack their organisation."""
    text = str(name)
    if text in _OWN and not Path(text).exists():
        return f"sentence-transformers/{text}" if text != "all-MiniLM-L6-v2" else "minilm"
    return name


# Models that sentence-transformers' documentation names without their organisation.
_OWN = {
    "all-MiniLM-L6-v2",
    "all-MiniLM-L12-v2",
    "all-mpnet-base-v2",
    "all-distilroberta-v1",
    "multi-qa-MiniLM-L6-cos-v1",
    "multi-qa-mpnet-base-dot-v1",
    "paraphrase-MiniLM-L6-v2",
    "paraphrase-multilingual-MiniLM-L12-v2",
    "paraphrase-multilingual-mpnet-base-v2",
}


def quantize_embeddings(embeddings, precision, ranges=None, calibration_embeddings=None):
    """Quantized embeddings, as sentence-transformers' function of this name."""
    embeddings = numpy.ascontiguousarray(_similarity.to_numpy(embeddings), numpy.float32)
    if calibration_embeddings is not None and ranges is None:
        ranges = numpy.stack([numpy.min(calibration_embeddings, 0), numpy.max(calibration_embeddings, 0)])
    if ranges is not None:
        ranges = tuple(numpy.asarray(ranges, numpy.float32).tolist())
    width = embeddings.shape[-1]
    quantized = _sconce.quantize(embeddings.reshape(-1).tolist(), width, precision, ranges)
    return numpy.asarray(quantized).reshape(*embeddings.shape[:-1], -1)


def _tensors(embeddings, as_one):
    """A torch tensor, or a list of them."""
    import torch

    tensor = torch.from_numpy(numpy.ascontiguousarray(embeddings))
    return tensor if as_one else list(tensor)
