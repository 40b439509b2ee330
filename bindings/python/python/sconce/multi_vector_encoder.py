"""`MultiVectorEncoder`: an embedding per token (ColBERT), compared by MaxSim."""

import numpy

from . import _sconce
from .base_model import EmbeddingModel, renamed, tensors
from .errors import InputError
from .similarity import is_tensor, like, to_numpy
from .texts import as_texts, in_windows


class MultiVectorEncoder(EmbeddingModel):
    """A model that embeds every token of a text."""

    _task = "multi"

    def __init__(self, model_name_or_path, *, similarity_fn_name=None, **options):
        super().__init__(model_name_or_path, **options)
        self.similarity_fn_name = self._similarity_name(similarity_fn_name, ("maxsim", "meanmaxsim"))

    @renamed(sentences="inputs")
    def encode(
        self,
        inputs,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        output_value="token_embeddings",
        convert_to_numpy=True,
        device=None,
        normalize_embeddings=False,
        pool=None,
        chunk_size=None,
        token_pooling=None,
        *,
        task=None,
    ):
        """A matrix for each text, with a row per token: a list, or one matrix for a single text.

        `task` is `query`, or `document` by default. `batch_size` has no effect.
        """
        if task not in (None, "query", "document"):
            raise InputError(f"task `{task}` is not one of query, document")
        if output_value != "token_embeddings" or token_pooling is not None:
            raise InputError("output_value and token_pooling are not supported; leave them out")
        self._check_call(device, pool, chunk_size)
        texts, is_single = as_texts(inputs)
        before = self._text_after_marker(prompt_name, prompt, task or "document")
        texts = [before + text for text in texts] if before else texts
        model, is_query = self._model, task == "query"

        def embed(part):
            return _sconce.embed_multi(model, part, is_query, self._max_seq_length)

        rows = [numpy.asarray(matrix) for part in in_windows(embed, texts, show_progress_bar) for matrix in part]
        if normalize_embeddings:
            rows = [row / numpy.maximum(numpy.linalg.norm(row, axis=-1, keepdims=True), 1e-12) for row in rows]
        rows = rows if convert_to_numpy else [tensors(row) for row in rows]
        return rows[0] if is_single else rows

    def similarity(self, embeddings1, embeddings2):
        """MaxSim of every query with every document: for each vector of the query, its best match
        in the document, summed (`maxsim`) or as a mean (`meanmaxsim`)."""
        queries, documents = _matrices(embeddings1), _matrices(embeddings2)
        scores = [[self._score(query, document) for document in documents] for query in queries]
        return like(numpy.array(scores, numpy.float32).reshape(len(queries), len(documents)), embeddings1)

    def similarity_pairwise(self, embeddings1, embeddings2):
        """MaxSim of queries and documents at the same place."""
        queries, documents = _matrices(embeddings1), _matrices(embeddings2)
        if len(queries) != len(documents):
            raise InputError(f"{len(queries)} queries and {len(documents)} documents; give as many of both")
        scores = [self._score(query, document) for query, document in zip(queries, documents)]
        return like(numpy.array(scores, numpy.float32), embeddings1)

    def rank(self, query, documents, top_k=None, return_documents=False):
        """The documents by their MaxSim with the query, best first."""
        documents, _ = as_texts(documents)
        scores = self.similarity([self.encode_query(query)], self.encode_document(documents))[0]
        order = sorted(range(len(documents)), key=lambda i: -scores[i])[:top_k]
        results = [{"corpus_id": i, "score": float(scores[i])} for i in order]
        if return_documents:
            for result in results:
                result["text"] = documents[result["corpus_id"]]
        return results

    def get_sentence_embedding_dimension(self):
        """The dimension of a vector."""
        return self._info["dimension"]

    get_embedding_dimension = get_sentence_embedding_dimension

    def _saved_prompts(self):
        """The prompts of the files; they begin with the markers of queries and documents."""
        prompts = dict(self._config.get("prompts") or {})
        for name in ("query", "document"):
            marker = self._config.get(f"{name}_prefix")
            if marker:
                prompts[name] = marker + (prompts.get(name) or "").removeprefix(marker)
        self._markers = {name: prompts.get(name) or "" for name in ("query", "document")}
        return prompts

    def _text_after_marker(self, name, text, task):
        """What the prompt puts between the marker, which the engine inserts as a token, and a text."""
        if name is None and text is None and self.default_prompt_name is None:
            return ""
        prompt, marker = self._resolve_prompt(name, text), self._markers[task]
        if not prompt.startswith(marker):
            raise InputError(f"the prompt {prompt!r} does not begin with the model's marker of a {task}, {marker!r}")
        return prompt[len(marker) :]

    def _score(self, query, document):
        if not len(document) or not len(query):
            return 0.0
        best = (query @ document.T).max(-1)
        return best.sum() if self.similarity_fn_name == "maxsim" else best.mean()


def _matrices(embeddings):
    if getattr(embeddings, "ndim", 3) == 2:
        embeddings = [embeddings]
    return [to_numpy(matrix) if is_tensor(matrix) else numpy.asarray(matrix) for matrix in embeddings]
