"""`SentenceTransformer`: dense embeddings with the API of sentence-transformers."""

import contextlib
import operator

import numpy

from . import _sconce
from . import similarity as _similarity
from .base_model import EmbeddingModel, renamed, tensors
from .errors import InputError
from .json_options import to_json
from .texts import as_texts, in_windows

_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


class SentenceTransformer(EmbeddingModel):
    """A model that embeds texts.

    `model_name_or_path` is a folder, a .gguf file, a name on the Hugging Face hub, `pip:NAME`, or a
    short name such as `minilm`. Names without an organisation are looked up in
    `sentence-transformers/`, as sentence-transformers does.
    """

    _task = "embed"
    _organization = "sentence-transformers"

    def __init__(self, model_name_or_path, *, similarity_fn_name=None, truncate_dim=None, **options):
        super().__init__(model_name_or_path, **options)
        self.similarity_fn_name = self._similarity_name(similarity_fn_name, _similarity.NAMES)
        self.truncate_dim = truncate_dim

    @renamed(sentences="inputs")
    def encode(
        self,
        inputs,
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
        pool=None,
        chunk_size=None,
        *,
        task=None,
        pooling=None,
    ):
        """The embedding of one text (an array), or of several (a matrix with a row for each).

        `batch_size` is accepted and has no effect: the engine packs micro-batches by tokens. `task`
        selects the weights of a model that has some for each task (jina-embeddings-v3), as does a
        prompt of the task's name.
        """
        model = self._model
        if precision not in _PRECISIONS:
            raise InputError(f"unknown precision `{precision}`; use one of {', '.join(_PRECISIONS)}")
        self._check_call(device, pool, chunk_size)
        texts, is_single = as_texts(inputs)
        options = {
            "task": self._weights_of(task, None if prompt is not None else prompt_name or self.default_prompt_name),
            "prompt": self._resolve_prompt(prompt_name, prompt),
            "normalize": True if normalize_embeddings else None,
            "pooling": pooling,
            "max_tokens": self._max_seq_length,
        }
        if output_value == "token_embeddings":
            if options["task"] is not None:
                raise InputError("token embeddings with the weights of a task are not supported")
            return self._tokens(texts, is_single, options, convert_to_tensor)
        if output_value != "sentence_embedding":
            raise InputError(f"output_value {output_value!r}: use 'sentence_embedding' or 'token_embeddings'")
        dimensions = self._dimensions(truncate_dim)
        # The engine L2-normalizes what it truncates. sentence-transformers does only if it is asked to.
        if normalize_embeddings:
            options["dimensions"] = dimensions
        as_json = to_json(options)
        parts = in_windows(lambda part: numpy.asarray(_sconce.embed(model, part, as_json)), texts, show_progress_bar)
        embeddings = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        embeddings = embeddings[:, :dimensions]
        if precision != "float32":
            embeddings = quantize_embeddings(embeddings, precision)
        if is_single:
            embeddings = embeddings[0]
        if convert_to_tensor or not convert_to_numpy:
            tensor = tensors(embeddings)
            return tensor if convert_to_tensor or is_single else list(tensor)
        return embeddings

    def similarity(self, embeddings1, embeddings2):
        """The similarity of every embedding with every other, by the model's similarity function."""
        return _similarity.similarity(embeddings1, embeddings2, self.similarity_fn_name)

    def similarity_pairwise(self, embeddings1, embeddings2):
        """The similarity of embeddings at the same place."""
        return _similarity.similarity_pairwise(embeddings1, embeddings2, self.similarity_fn_name)

    def get_sentence_embedding_dimension(self):
        """The dimension of an embedding."""
        return self._dimensions(None) or self._info["dimension"]

    get_embedding_dimension = get_sentence_embedding_dimension

    @contextlib.contextmanager
    def truncate_embeddings(self, truncate_dim):
        """Sets `truncate_dim` for the calls inside of a `with` statement."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings

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

    def _weights_of(self, task, prompt_name):
        """The task whose weights apply, of a model that has some for each."""
        tasks = self._info["tasks"]
        if not tasks or task in tasks:
            return task if tasks else None
        if task not in (None, "query", "document"):
            raise InputError(f"task `{task}` is not one of the model's tasks: {', '.join(tasks)}")
        return prompt_name if prompt_name in tasks else None

    def _tokens(self, texts, is_single, options, convert_to_tensor):
        options = {name: options[name] for name in ("prompt", "max_tokens")}
        rows = [numpy.asarray(rows) for rows in _sconce.embed_tokens(self._model, texts, to_json(options))]
        rows = [tensors(row) for row in rows] if convert_to_tensor else rows
        return rows[0] if is_single else rows

    def _dimensions(self, truncate_dim):
        """The dimensions to keep; None for all. A number beyond the model's dimension is all."""
        wanted = truncate_dim if truncate_dim is not None else self.truncate_dim
        if wanted is None:
            return None
        wanted = operator.index(wanted)
        if wanted < 1:
            raise InputError(f"truncate_dim is {wanted}; use 1 to {self._info['dimension']}")
        return min(wanted, self._info["dimension"])

    def _saved_prompts(self):
        return self._info["prompts"]

    def _saved_default_prompt(self):
        return self._info["default_prompt"]


def quantize_embeddings(embeddings, precision, ranges=None, calibration_embeddings=None):
    """Quantized embeddings, as sentence-transformers' function of this name."""
    embeddings = numpy.ascontiguousarray(_similarity.to_numpy(embeddings), numpy.float32)
    if precision == "float32":
        return embeddings
    if calibration_embeddings is not None and ranges is None:
        ranges = numpy.stack([numpy.min(calibration_embeddings, 0), numpy.max(calibration_embeddings, 0)])
    if ranges is not None:
        ranges = tuple(numpy.asarray(ranges, numpy.float32).tolist())
    width = embeddings.shape[-1]
    quantized = _sconce.quantize(embeddings.tobytes(), width, precision, ranges)
    return numpy.asarray(quantized).reshape(*embeddings.shape[:-1], -1)
