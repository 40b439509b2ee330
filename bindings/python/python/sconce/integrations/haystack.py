"""Haystack: `SconceTextEmbedder`, `SconceDocumentEmbedder` and `SconceRanker`."""

from dataclasses import replace

from haystack import Document, component, default_from_dict, default_to_dict

from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer


class _Loaded:
    """A component that loads its model in `warm_up`, or in its first run."""

    _class = None

    def __init__(self, model, options):
        self.model, self.options = model, dict(options or {})
        self._loaded = None

    def warm_up(self):
        if self._loaded is None:
            self._loaded = self._class(self.model, **self.options)
        return self._loaded


@component
class SconceTextEmbedder(_Loaded):
    """The embedding of a query."""

    _class = SentenceTransformer

    def __init__(self, model: str = "minilm", options: dict | None = None):
        _Loaded.__init__(self, model, options)  # The decorator makes another class, so no super().

    @component.output_types(embedding=list[float])
    def run(self, text: str):
        return {"embedding": self.warm_up().encode_query(text).tolist()}

    def to_dict(self):
        return default_to_dict(self, model=self.model, options=self.options)

    @classmethod
    def from_dict(cls, data):
        return default_from_dict(cls, data)


@component
class SconceDocumentEmbedder(_Loaded):
    """Documents with their embeddings."""

    _class = SentenceTransformer

    def __init__(self, model: str = "minilm", options: dict | None = None):
        _Loaded.__init__(self, model, options)  # The decorator makes another class, so no super().

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]):
        rows = self.warm_up().encode_document([document.content or "" for document in documents])
        return {"documents": [replace(d, embedding=row.tolist()) for d, row in zip(documents, rows)]}

    def to_dict(self):
        return default_to_dict(self, model=self.model, options=self.options)

    @classmethod
    def from_dict(cls, data):
        return default_from_dict(cls, data)


@component
class SconceRanker(_Loaded):
    """The `top_k` documents with the best scores of a cross-encoder."""

    _class = CrossEncoder

    def __init__(self, model: str, top_k: int = 10, options: dict | None = None):
        _Loaded.__init__(self, model, options)  # The decorator makes another class, so no super().
        self.top_k = top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None):
        texts = [document.content or "" for document in documents]
        ranked = self.warm_up().rank(query, texts, top_k=top_k or self.top_k)
        return {"documents": [replace(documents[hit["corpus_id"]], score=hit["score"]) for hit in ranked]}

    def to_dict(self):
        return default_to_dict(self, model=self.model, top_k=self.top_k, options=self.options)

    @classmethod
    def from_dict(cls, data):
        return default_from_dict(cls, data)
