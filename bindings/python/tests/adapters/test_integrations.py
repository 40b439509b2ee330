"""Adapters for libraries that `bindings/python/test` installs."""

import numpy as np

from sconce import CrossEncoder, SentenceTransformer

TEXTS = ["the cat sat on the mat", "a man is eating food", "hello world"]


def test_langchain(golden):
    from langchain_core.documents import Document

    from sconce.integrations.langchain import SconceEmbeddings, SconceReranker, SconceVectorStore

    name = str(golden("st-prompts"))
    embeddings, model = SconceEmbeddings(name), SentenceTransformer(name)
    assert np.allclose(embeddings.embed_documents(TEXTS), model.encode_document(TEXTS), atol=1e-6)
    assert np.allclose(embeddings.embed_query("cat"), model.encode_query("cat"), atol=1e-6)
    store = SconceVectorStore.from_texts(TEXTS, embeddings, [{"n": i} for i in range(3)], ids=["a", "b", "c"])
    want = model.encode_document(TEXTS) @ model.encode_query("cat")
    found = store.similarity_search_with_score("cat", k=2)
    assert [d.metadata["n"] for d, _ in found] == np.argsort(-want)[:2].tolist()
    assert np.allclose([score for _, score in found], np.sort(want)[::-1][:2], atol=1e-5)
    best = found[0][0].id
    store.delete([best])
    assert best not in [d.id for d in store.similarity_search("cat", k=3)]
    store.add_texts(["new"], ids=["d"])
    assert len(store.similarity_search("cat", k=9)) == 3 and store.get_by_ids(["d"])[0].page_content == "new"
    assert len(store.as_retriever(search_kwargs={"k": 1}).invoke("cat")) == 1
    assert store.similarity_search("cat", filter=lambda d: d.id == "d")[0].id == "d"
    # Without an id a text gets one; of two texts with the same id, the last is kept.
    ids = store.add_texts(["one", "two", "three"], ids=["e", None, "e"])
    assert ids[0] == ids[2] == "e" and ids[1] and store.get_by_ids(["e"])[0].page_content == "three"
    assert len(store._rows) == len(store._documents) == 5
    assert store.similarity_search("three", k=1)[0].id == "e"

    name = str(golden("task-rerank"))
    reranker = SconceReranker(model=name, top_n=2)
    kept = reranker.compress_documents([Document(page_content=text) for text in TEXTS], "cat")
    ranked = CrossEncoder(name).rank("cat", TEXTS, top_k=2)
    assert [d.page_content for d in kept] == [TEXTS[hit["corpus_id"]] for hit in ranked]
    assert [d.metadata["relevance_score"] for d in kept] == [hit["score"] for hit in ranked]


def test_llama_index(golden):
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    from sconce.integrations.llama_index import SconceEmbedding, SconceRerank

    name = str(golden("st-prompts"))
    embedding, model = SconceEmbedding(name), SentenceTransformer(name)
    assert np.allclose(embedding.get_query_embedding("cat"), model.encode_query("cat"), atol=1e-6)
    assert np.allclose(embedding.get_text_embedding_batch(TEXTS), model.encode_document(TEXTS), atol=1e-6)
    name = str(golden("task-rerank"))
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    kept = SconceRerank(name, top_n=2).postprocess_nodes(nodes, QueryBundle("cat"))
    ranked = CrossEncoder(name).rank("cat", TEXTS, top_k=2)
    assert [n.node.text for n in kept] == [TEXTS[hit["corpus_id"]] for hit in ranked]


def test_haystack(golden):
    from haystack import Document

    from sconce.integrations.haystack import SconceDocumentEmbedder, SconceRanker, SconceTextEmbedder

    name = str(golden("st-prompts"))
    model, documents = SentenceTransformer(name), [Document(content=text) for text in TEXTS]
    embedder = SconceTextEmbedder.from_dict(SconceTextEmbedder(name).to_dict())
    assert np.allclose(embedder.run(text="cat")["embedding"], model.encode_query("cat"), atol=1e-6)
    rows = [d.embedding for d in SconceDocumentEmbedder(name).run(documents=documents)["documents"]]
    assert np.allclose(rows, model.encode_document(TEXTS), atol=1e-6)
    name = str(golden("task-rerank"))
    kept = SconceRanker(name, top_k=2).run(query="cat", documents=documents)["documents"]
    ranked = CrossEncoder(name).rank("cat", TEXTS, top_k=2)
    assert [d.content for d in kept] == [TEXTS[hit["corpus_id"]] for hit in ranked]


def test_lancedb(golden, tmp_path):
    import lancedb
    import sconce.integrations.lancedb  # noqa: F401
    from lancedb.embeddings import get_registry
    from lancedb.pydantic import LanceModel, Vector

    name = str(golden("st-prompts"))
    function = get_registry().get("sconce").create(name=name)

    class Row(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()

    table = lancedb.connect(tmp_path).create_table("rows", schema=Row)
    table.add([{"text": text} for text in TEXTS])
    found = table.search("cat").metric("cosine").limit(3).to_list()
    model = SentenceTransformer(name)
    order = np.argsort(-(model.encode_document(TEXTS) @ model.encode_query("cat")))
    assert [row["text"] for row in found] == [TEXTS[i] for i in order]
