"""LangChain: `SconceEmbeddings`, `SconceReranker` and `SconceVectorStore`."""

import uuid

import numpy
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, PrivateAttr

from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer


class SconceEmbeddings(Embeddings):
    """Embeddings of a sentence-transformers model. Options are those of `SentenceTransformer`."""

    def __init__(self, model="minilm", *, encode_options=None, **options):
        self.model = SentenceTransformer(model, **options)
        self.encode_options = dict(encode_options or {})

    def embed_documents(self, texts):
        return self.model.encode_document(list(texts), **self.encode_options).tolist()

    def embed_query(self, text):
        return self.model.encode_query(text, **self.encode_options).tolist()


class SconceReranker(BaseDocumentCompressor):
    """Keeps the `top_n` documents with the best scores of a cross-encoder."""

    model: str
    top_n: int | None = 3
    options: dict = {}
    _encoder: CrossEncoder = PrivateAttr()

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def model_post_init(self, _context):
        self._encoder = CrossEncoder(self.model, **self.options)

    def compress_documents(self, documents, query, callbacks=None):
        ranked = self._encoder.rank(query, [document.page_content for document in documents], top_k=self.top_n)
        best = [(documents[hit["corpus_id"]], hit["score"]) for hit in ranked]
        return [
            Document(page_content=d.page_content, metadata={**d.metadata, "relevance_score": score}, id=d.id)
            for d, score in best
        ]


class SconceVectorStore(VectorStore):
    """Documents in memory, found by the cosine similarity of their embeddings, exactly."""

    def __init__(self, embedding):
        self._embedding = embedding
        self._documents = {}
        self._rows = numpy.zeros((0, 0), numpy.float32)

    @property
    def embeddings(self):
        return self._embedding

    def add_texts(self, texts, metadatas=None, *, ids=None, **_):
        texts = list(texts)
        ids = list(ids) if ids is not None else [None] * len(texts)
        ids = [key if key is not None else str(uuid.uuid4()) for key in ids]
        metadatas = list(metadatas) if metadatas is not None else [{} for _ in texts]
        if not len(texts) == len(ids) == len(metadatas):
            raise ValueError(f"{len(texts)} texts, {len(ids)} ids and {len(metadatas)} metadatas")
        if not texts:
            return []
        rows = _unit(numpy.asarray(self._embedding.embed_documents(texts), numpy.float32))
        self.delete(ids)
        # Of texts with the same id, the last is kept.
        last = sorted({key: i for i, key in enumerate(ids)}.values())
        self._rows = rows[last] if not self._documents else numpy.concatenate([self._rows, rows[last]])
        for i in last:
            self._documents[ids[i]] = Document(page_content=texts[i], metadata=dict(metadatas[i] or {}), id=ids[i])
        return ids

    def delete(self, ids=None, **_):
        gone = set(self._documents) if ids is None else set(ids)
        keep = [i for i, key in enumerate(self._documents) if key not in gone]
        if len(keep) < len(self._documents):
            self._rows = self._rows[keep]
            self._documents = {key: d for key, d in self._documents.items() if key not in gone}
        return True

    def get_by_ids(self, ids, /):
        return [self._documents[key] for key in ids if key in self._documents]

    def similarity_search(self, query, k=4, **options):
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_with_score(self, query, k=4, filter=None, **_):
        return self._search(self._embedding.embed_query(query), k, filter)

    def similarity_search_by_vector(self, embedding, k=4, filter=None, **_):
        return [document for document, _ in self._search(embedding, k, filter)]

    def _search(self, vector, k, keep):
        if not self._documents:
            return []
        scores = self._rows @ _unit(numpy.asarray(vector, numpy.float32)[None])[0]
        documents = list(self._documents.values())
        order = [i for i in numpy.argsort(-scores, kind="stable") if keep is None or keep(documents[i])]
        return [(documents[i], float(scores[i])) for i in order[:k]]

    def _select_relevance_score_fn(self):
        return lambda cosine: (cosine + 1) / 2

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, *, ids=None, **_):
        store = cls(embedding)
        store.add_texts(texts, metadatas, ids=ids)
        return store


def _unit(rows):
    return rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
