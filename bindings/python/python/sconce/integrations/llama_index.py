"""LlamaIndex: `SconceEmbedding` and `SconceRerank`."""

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode

from ..background import in_background
from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer


class SconceEmbedding(BaseEmbedding):
    """Embeddings of a sentence-transformers model."""

    options: dict = Field(default_factory=dict, description="Options of SentenceTransformer.")
    _model: Any = PrivateAttr()

    def __init__(self, model_name="minilm", *, options=None, **rest):
        super().__init__(model_name=model_name, options=options or {}, **rest)
        self._model = SentenceTransformer(model_name, **self.options)

    @classmethod
    def class_name(cls):
        return "SconceEmbedding"

    def _get_query_embedding(self, query):
        return self._model.encode_query(query).tolist()

    def _get_text_embedding(self, text):
        return self._model.encode_document(text).tolist()

    def _get_text_embeddings(self, texts):
        return self._model.encode_document(list(texts)).tolist()

    async def _aget_query_embedding(self, query):
        return await in_background(self._get_query_embedding, query)


class SconceRerank(BaseNodePostprocessor):
    """Keeps the `top_n` nodes with the best scores of a cross-encoder."""

    model: str = Field(description="The cross-encoder.")
    top_n: int = Field(default=3, description="Nodes to keep.")
    _encoder: Any = PrivateAttr()

    def __init__(self, model, *, top_n=3, options=None, **rest):
        super().__init__(model=model, top_n=top_n, **rest)
        self._encoder = CrossEncoder(model, **(options or {}))

    @classmethod
    def class_name(cls):
        return "SconceRerank"

    def _postprocess_nodes(self, nodes, query_bundle=None):
        if query_bundle is None:
            raise ValueError("reranking needs a query")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        ranked = self._encoder.rank(query_bundle.query_str, texts, top_k=self.top_n)
        for hit in ranked:
            nodes[hit["corpus_id"]].score = hit["score"]
        return [nodes[hit["corpus_id"]] for hit in ranked]
