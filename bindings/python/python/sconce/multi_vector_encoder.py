"""`MultiVectorEncoder`: an embedding per token (ColBERT), compared by MaxSim."""

import numpy

from . import _sconce
from .models import Model
from .sentence_transformer import dtype_of
from .similarity import is_tensor, to_numpy
from .texts import as_texts, in_windows


class MultiVectorEncoder(Model):
    """A model that embeds every token of a text."""

    _task = "multi"

    def __init__(
        self,
        model_name_or_path,
        *,
        device=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        model_kwargs=None,
        dtype=None,
        fallback=False,
        batch_tokens=None,
    ):
        self._load(
            model_name_or_path,
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            dtype=dtype or dtype_of(model_kwargs),
            fallback=fallback,
            batch_tokens=batch_tokens,
        )

    def encode(self, inputs, is_query=False, batch_size=32, show_progress_bar=None, convert_to_tensor=False):
        """A matrix for each text, with a row per token: a list, or one matrix for a single text."""
        texts, is_single = as_texts(inputs)
        model = self._model
        parts = in_windows(lambda part: _sconce.embed_multi(model, part, is_query, None), texts, show_progress_bar)
        rows = [numpy.asarray(matrix) for part in parts for matrix in part]
        if convert_to_tensor:
            import torch

            rows = [torch.from_numpy(row) for row in rows]
        return rows[0] if is_single else rows

    def encode_query(self, inputs, **options):
        """`encode` for queries: with the query marker, and expanded if the model was trained so."""
        return self.encode(inputs, is_query=True, **options)

    def encode_document(self, inputs, **options):
        """`encode` for documents: with the document marker, and without tokens of the skip list."""
        return self.encode(inputs, is_query=False, **options)

    def similarity(self, queries, documents):
        """MaxSim of every query with every document: for each vector of the query, its best match
        in the document, summed."""
        queries, documents = _matrices(queries), _matrices(documents)
        return numpy.array([[_max_sim(q, d) for d in documents] for q in queries], numpy.float32)

    def similarity_pairwise(self, queries, documents):
        """MaxSim of queries and documents at the same place."""
        return numpy.array([_max_sim(q, d) for q, d in zip(_matrices(queries), _matrices(documents))], numpy.float32)

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


def _matrices(embeddings):
    if getattr(embeddings, "ndim", 3) == 2:
        embeddings = [embeddings]
    return [to_numpy(matrix) if is_tensor(matrix) else numpy.asarray(matrix) for matrix in embeddings]


def _max_sim(query, document):
    return (query @ document.T).max(-1).sum() if len(document) else 0.0
