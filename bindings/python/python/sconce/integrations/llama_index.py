"""LlamaIndex: `SconceEmbedding`, `SconceRerank`, `SconceIndexVectorStore` and `SconceIndexRetriever`."""

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilters,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import (
    build_metadata_filter_fn,
    metadata_dict_to_node,
    node_to_metadata_dict,
)

from ..background import in_background
from ..cross_encoder import CrossEncoder
from ..sentence_transformer import SentenceTransformer
from .index_documents import added_documents, all_added, find, opened, place


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


class SconceIndexVectorStore(BasePydanticVectorStore):
    """Nodes in an `Index`, a file that other processes can search too.

    `index` is an `Index`, or the path of one and its options. Queries return added nodes, and
    passages of the files that the index has (`Index.update`). The index computes its embeddings
    itself and ignores those of the nodes: give `VectorStoreIndex` a `MockEmbedding`, so that
    nothing is embedded twice. `mode` and `rerank` are those of `Index.search`.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    path: str = Field(description="The index's file.")
    mode: str | None = Field(default=None, description="How passages are ranked by default.")
    rerank: Any = Field(default=None, exclude=True, description="The reranker.")
    _index: Any = PrivateAttr()

    def __init__(self, index=None, *, path=None, mode=None, rerank=None, stores_text=True, is_embedding_query=False, **options):
        opened_index = opened(index if index is not None else path, options)
        super().__init__(path=opened_index.path, mode=mode, rerank=rerank)
        self._index = opened_index

    @classmethod
    def class_name(cls):
        return "SconceIndexVectorStore"

    @property
    def client(self):
        return self._index

    def add(self, nodes, **_):
        return self._index.add([_as_document(node) for node in nodes])

    async def async_add(self, nodes, **options):
        return await in_background(self.add, nodes, **options)

    def delete(self, ref_doc_id, **_):
        self._remove(lambda document: document.metadata.get("ref_doc_id") == ref_doc_id)

    def delete_nodes(self, node_ids=None, filters=None, **_):
        self._remove(_selects(node_ids, filters))

    def clear(self):
        self._remove(lambda _: True)

    def get_nodes(self, node_ids=None, filters=None):
        is_selected = _selects(node_ids, filters)
        selected = [document.path for document in all_added(self._index) if is_selected(document)]
        return [_as_node(document) for document in added_documents(self._index, selected).values()]

    def query(self, query, **_):
        if query.mode not in _MODES:
            raise ValueError(f"the query mode `{query.mode.value}` is not supported; use one of {', '.join(_MODES)}")
        options = {"mode": _MODES[query.mode] or self.mode, "rerank": self.rerank}
        if query.query_str is None:
            options |= {"mode": "dense", "vector": query.query_embedding}
        filters = _filters(query.filters)
        filters += [{"type": "in", "key": "ref_doc_id", "value": query.doc_ids}] if query.doc_ids else []
        # The index's own name of a document.
        filters += [{"type": "in", "key": "path", "value": query.node_ids}] if query.node_ids else []
        count = query.similarity_top_k
        if query.mode == VectorStoreQueryMode.HYBRID and query.hybrid_top_k is not None:
            count = query.hybrid_top_k
        found = find(self._index, query.query_str or "", count, filter=filters or None, **options)
        nodes = [_node_of(*pair) for pair in found]
        similarities, ids = [hit.score for hit, _ in found], [node.node_id for node in nodes]
        return VectorStoreQueryResult(nodes=nodes, similarities=similarities, ids=ids)

    async def aquery(self, query, **options):
        return await in_background(self.query, query, **options)

    def _remove(self, is_selected):
        self._index.remove([document.path for document in all_added(self._index) if is_selected(document)])


class SconceIndexRetriever(BaseRetriever):
    """Finds nodes, and passages of files, in an `Index`. The options are those of `Index.search`."""

    def __init__(self, index, *, similarity_top_k=10, mode=None, filter=None, rerank=None, callback_manager=None):
        self._index, self._count = opened(index, {}), similarity_top_k
        self._options = {"mode": mode, "filter": filter, "rerank": rerank}
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle):
        found = find(self._index, query_bundle.query_str, self._count, **self._options)
        return [NodeWithScore(node=_node_of(hit, document), score=hit.score) for hit, document in found]

    async def _aretrieve(self, query_bundle):
        return await in_background(self._retrieve, query_bundle)


# The modes of the index; None: that of the store.
_MODES = {
    VectorStoreQueryMode.DEFAULT: None,
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
    VectorStoreQueryMode.SPARSE: "bm25",
    VectorStoreQueryMode.TEXT_SEARCH: "bm25",
}
_OPERATORS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
}


def _as_document(node):
    metadata = node_to_metadata_dict(node, remove_text=True, flat_metadata=True)
    return {"id": node.node_id, "text": node.get_content(metadata_mode=MetadataMode.NONE), "metadata": metadata}


def _as_node(document):
    if "_node_content" in document.metadata:
        return metadata_dict_to_node(document.metadata, text=document.text)
    # It was not added by LlamaIndex.
    return TextNode(id_=document.path, text=document.text, metadata=document.metadata)


def _node_of(hit, document):
    if document is not None:
        return _as_node(document)
    metadata = {**hit.metadata, "file_path": hit.path, **place(hit)}
    return TextNode(id_=f"{hit.path}#{hit.chunk}", text=hit.text, metadata=metadata)


def _selects(node_ids, filters):
    """Whether a document is one of these nodes and passes the filters."""
    wanted = None if node_ids is None else set(node_ids)

    def is_selected(document):
        passes = build_metadata_filter_fn(lambda _: document.metadata, filters)
        return (wanted is None or document.path in wanted) and passes(document.path)

    return is_selected


def _filters(given):
    """A list of filters of the index, which must all pass."""
    if given is None or not given.filters:
        return []
    if given.condition not in (None, FilterCondition.AND, FilterCondition.OR):
        raise ValueError(f"filters joined by `{given.condition.value}` are not supported; use `and` or `or`")
    filters = []
    for one in given.filters:
        if isinstance(one, MetadataFilters):
            filters.append({"type": "and", "filters": _filters(one)})
        elif one.operator == FilterOperator.TEXT_MATCH:
            filters.append({"type": "glob", "key": one.key, "value": f"*{one.value}*"})
        elif one.operator in _OPERATORS:
            filters.append({"type": _OPERATORS[one.operator], "key": one.key, "value": one.value})
        else:
            raise ValueError(f"the filter operator `{one.operator.value}` is not supported")
    return [{"type": "or", "filters": filters}] if given.condition == FilterCondition.OR else filters
