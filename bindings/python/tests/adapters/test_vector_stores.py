"""Vector stores over `Index`, with the packages that `bindings/python/test` installs."""

import asyncio

import pytest
from conftest import MINILM
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from sconce import Index

TEXTS = ["the cat sat on the mat", "a man is eating food", "the train to Paris leaves at noon"]
METADATA = [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.fixture
def files(tmp_path):
    """A folder with a file."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "dogs.md").write_text("# Dogs\n\nA dog barks at the postman every morning.\n")
    return folder


class TestLangChain(VectorStoreIntegrationTests):
    """LangChain's own tests of a vector store."""

    @pytest.fixture
    def vectorstore(self, tmp_path, minilm):
        from sconce.integrations.langchain import SconceIndexVectorStore

        store = SconceIndexVectorStore(tmp_path / "store.db", model=minilm)
        yield store
        store.index.close()


def test_langchain(files, tmp_path, minilm):
    from langchain_core.embeddings import DeterministicFakeEmbedding

    from sconce.integrations.langchain import SconceEmbeddings, SconceIndexVectorStore

    embeddings, path = SconceEmbeddings(MINILM), tmp_path / "store.db"
    store = SconceIndexVectorStore.from_texts(TEXTS, embeddings, METADATA, ids=["a", "b", "c"], path=path)
    assert [d.id for d in store.similarity_search("lunch", k=1)] == ["b"]
    assert [d.id for d in store.similarity_search("lunch", filter={"n": 2})] == ["c"]
    assert [d.id for d in store.similarity_search("lunch", filter="n<1")] == ["a"]
    nearest = store.similarity_search_by_vector(embeddings.embed_query("lunch"), k=2)
    assert len(nearest) == 2 and nearest[0].id == "b"
    scores = store.similarity_search_with_relevance_scores("lunch", k=3)
    assert [d.id for d, _ in scores][0] == "b" and all(0 <= score <= 1 for _, score in scores)
    assert store.similarity_search("eating", mode="bm25")[0].metadata == {"n": 1}
    retriever = store.as_retriever(search_kwargs={"k": 1})
    assert retriever.invoke("a pet")[0].id == "a" and asyncio.run(retriever.ainvoke("a pet"))[0].id == "a"
    threshold = {"k": 3, "score_threshold": 0.999}
    assert store.as_retriever(search_type="similarity_score_threshold", search_kwargs=threshold).invoke("x") == []

    # Files of the index are found beside added documents, by passage.
    store.index.update(files)
    found = store.similarity_search("a barking dog", k=1)[0]
    assert found.id is None and found.metadata["source"].endswith("dogs.md") and found.metadata["line"] >= 1
    # An added document of several passages comes once and whole.
    long = "\n\n".join(f"Section {i} is about Norwegian forests. " * 30 for i in range(6))
    store.add_texts([long], ids=["long"])
    found = store.similarity_search("Norwegian forests", k=4)
    assert found[0].id == "long" and found[0].page_content == long and [d.id for d in found].count("long") == 1
    store.delete()
    assert [d.metadata["source"][-7:] for d in store.similarity_search("lunch")] == ["dogs.md"]
    with pytest.raises(ValueError, match="DeterministicFakeEmbedding"):
        SconceIndexVectorStore.from_texts(TEXTS, DeterministicFakeEmbedding(size=3), path=tmp_path / "other.db")
    with pytest.raises(TypeError, match="device"):
        SconceIndexVectorStore(store.index, device="cpu")
    store.index.close()
    # Another process, or a later one, opens the same file.
    again = SconceIndexVectorStore(path)
    assert again.similarity_search("dog", k=1)[0].metadata["source"].endswith("dogs.md")
    again.index.close()


def test_llama_index(files, tmp_path, minilm):
    from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores import (
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
    )

    from sconce.integrations.llama_index import SconceIndexRetriever, SconceIndexVectorStore

    store = SconceIndexVectorStore(tmp_path / "store.db", model=minilm)
    nothing = MockEmbedding(embed_dim=1)
    documents = [Document(text=text, id_=key, metadata=m) for text, key, m in zip(TEXTS, "abc", METADATA)]
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=nothing)
    found = index.as_retriever(similarity_top_k=1).retrieve("lunch")
    assert (found[0].text, found[0].node.ref_doc_id, found[0].metadata) == (TEXTS[1], "b", {"n": 1})
    found = asyncio.run(index.as_retriever(similarity_top_k=1).aretrieve("a pet"))
    assert found[0].node.ref_doc_id == "a"

    def filtered(*filters, condition=FilterCondition.AND):
        chosen = MetadataFilters(filters=list(filters), condition=condition)
        found = index.as_retriever(similarity_top_k=5, filters=chosen).retrieve("something")
        return {node.node.ref_doc_id for node in found}

    def where(operator, value, key="n"):
        return MetadataFilter(key=key, operator=operator, value=value)

    assert filtered(where(FilterOperator.GTE, 1)) == {"b", "c"}
    assert filtered(where(FilterOperator.EQ, 0), where(FilterOperator.EQ, 2), condition=FilterCondition.OR) == {"a", "c"}
    nested = MetadataFilters(filters=[where(FilterOperator.IN, [0, 1]), where(FilterOperator.NE, 0)])
    assert filtered(nested) == {"b"}
    for wrong in (where(FilterOperator.CONTAINS, "x"), where(FilterOperator.IS_EMPTY, None)):
        with pytest.raises(ValueError, match="operator"):
            filtered(wrong)
    with pytest.raises(ValueError, match="mmr"):
        index.as_retriever(vector_store_query_mode="mmr").retrieve("lunch")
    words = index.as_retriever(vector_store_query_mode="text_search").retrieve("eating")
    assert [node.node.ref_doc_id for node in words] == ["b"]
    vector = minilm.encode_query("lunch").tolist()
    by_vector = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=1))
    assert by_vector.nodes[0].ref_doc_id == "b" and by_vector.ids == [by_vector.nodes[0].node_id]
    only = store.query(VectorStoreQuery(query_str="lunch", similarity_top_k=5, doc_ids=["a", "c"]))
    assert {node.ref_doc_id for node in only.nodes} == {"a", "c"}

    store.add([TextNode(id_="own", text="A node of its own.", metadata={"n": 9})])
    assert store.get_nodes(["own"])[0].get_content() == "A node of its own."
    assert [node.node_id for node in store.get_nodes(filters=MetadataFilters(filters=[where(FilterOperator.EQ, 9)]))] == ["own"]
    own = store.query(VectorStoreQuery(query_str="node", similarity_top_k=5, node_ids=["own"]))
    assert own.ids == ["own"]
    store.delete_nodes(["own"])
    index.delete_ref_doc("b")
    assert {node.ref_doc_id for node in store.get_nodes()} == {"a", "c"}

    # Files of the index are found too, by passage.
    store.client.update(files)
    retriever = SconceIndexRetriever(store.client, similarity_top_k=1)
    found = retriever.retrieve("a barking dog")[0]
    assert found.metadata["file_path"].endswith("dogs.md") and "barks" in found.text
    assert asyncio.run(retriever.aretrieve("a barking dog"))[0].node_id == found.node_id
    store.clear()
    assert store.get_nodes() == [] and store.client.status()["files"] == 1
    assert SconceIndexVectorStore.from_dict(store.to_dict()).path == store.path
    store.client.close()


def test_an_index_of_the_command(files, tmp_path, minilm):
    """What `sconce index` or `Index` has written can be a vector store."""
    from sconce.integrations.langchain import SconceIndexVectorStore

    index = Index(tmp_path / "own.db", minilm)
    index.update(files)
    found = SconceIndexVectorStore(index, mode="dense").similarity_search_with_score("dog", k=1)
    assert found[0][0].metadata["source"].endswith("dogs.md") and 0 < found[0][1] <= 1
    index.close()
