"""LangChain: `SconceEmbeddings`, `SconceReranker`, `SconceVectorStore` and `SconceIndexVectorStore`."""

import uuid

import numpy
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, PrivateAttr

from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer
from .index_documents import all_added, find, opened, place


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


class SconceIndexVectorStore(VectorStore):
    """Documents in an `Index`, a file that other processes can search too.

    `index` is an `Index`, or the path of one and its options. Searches return added documents
    whole, and passages of the files that the index has (`Index.update`), with `source`, `line` or
    `page` in their metadata. `mode` and `rerank` are those of `Index.search`; by default a search
    joins embeddings and BM25. The index computes its embeddings itself.
    """

    def __init__(self, index, *, mode=None, rerank=None, **options):
        self.index = opened(index, options)
        self._search_options = {"mode": mode, "rerank": rerank}

    def add_texts(self, texts, metadatas=None, *, ids=None, **_):
        return self.index.add(list(texts), ids, metadatas)

    def delete(self, ids=None, **_):
        self.index.remove([document.path for document in all_added(self.index)] if ids is None else list(ids))
        return True

    def get_by_ids(self, ids, /):
        documents = self.index.get(list(ids))
        return [_document(document) for document in documents if document is not None]

    def similarity_search(self, query, k=4, **options):
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_with_score(self, query, k=4, filter=None, **options):
        options = self._search_options | {"filter": _filter(filter)} | _known(options)
        found = find(self.index, query, k, **options)
        return [(_passage(hit) if document is None else _document(document), hit.score) for hit, document in found]

    def similarity_search_by_vector(self, embedding, k=4, filter=None, **_):
        options = {"mode": "dense", "filter": filter, "rerank": None, "vector": embedding}
        return [document for document, _ in self.similarity_search_with_score("", k, **options)]

    def _similarity_search_with_relevance_scores(self, query, k=4, **options):
        # Scores of other modes have no bounds.
        found = self.similarity_search_with_score(query, k, **options | {"mode": "dense", "rerank": None})
        return [(document, (cosine + 1) / 2) for document, cosine in found]

    @classmethod
    def from_texts(cls, texts, embedding=None, metadatas=None, *, path, ids=None, **options):
        """A store in the file `path`. `embedding` is a `SconceEmbeddings`, or None for the index's own model."""
        if isinstance(embedding, SconceEmbeddings):
            options["model"] = embedding.model
        elif embedding is not None:
            name = type(embedding).__name__
            raise ValueError(f"an index embeds by itself, and cannot use {name}: give a SconceEmbeddings, or None")
        store = cls(path, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store


def _document(document):
    return Document(page_content=document.text, metadata=document.metadata, id=document.path)


def _passage(hit):
    return Document(page_content=hit.text, metadata={**hit.metadata, "source": hit.path, **place(hit)})


def _known(options):
    """The options of a search that an index has."""
    names = ("mode", "rerank", "vector", "candidates")
    return {name: value for name, value in options.items() if name in names}


def _filter(given):
    """A filter of the index; a dict of keys and values, as other stores take it, stands for their equality."""
    if not isinstance(given, dict) or "type" in given:
        return given
    return {"type": "and", "filters": [{"type": "eq", "key": key, "value": value} for key, value in given.items()]}


def _unit(rows):
    return rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
