"""LlamaIndex's OpenAI-like and text-embeddings-inference classes."""

import asyncio

import httpx
from conftest import TEXTS, URL, same
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Rerank


def test_tei(vectors):
    embeddings = TextEmbeddingsInference(model_name="minilm", base_url=URL, text_instruction="", query_instruction="")
    same(embeddings.get_text_embedding_batch(TEXTS), vectors)
    same(embeddings.get_query_embedding(TEXTS[1]), vectors[1])
    same(asyncio.run(embeddings.aget_text_embedding(TEXTS[2])), vectors[2])


def test_openai_like_embeddings(vectors):
    embeddings = OpenAILikeEmbedding(model_name="minilm", api_base=URL + "/v1", api_key="none")
    same(embeddings.get_text_embedding_batch(TEXTS), vectors)


def llm(**more):
    more = {"temperature": 0, "max_tokens": 24, "is_chat_model": True, **more}
    return OpenAILike(model="smollm", api_base=URL + "/v1", api_key="none", context_window=2048, **more)


def test_openai_like(greedy):
    asked = [ChatMessage(role="user", content="Name three colours.")]
    assert llm().chat(asked).message.content == greedy
    assert [chunk.message.content for chunk in llm().stream_chat(asked)][-1] == greedy
    assert asyncio.run(llm().achat(asked)).message.content == greedy
    prompt = "Once upon a time, there was a"
    text = llm(is_chat_model=False).complete(prompt).text
    assert text and [chunk.text for chunk in llm(is_chat_model=False).stream_complete(prompt)][-1] == text


def test_rerank():
    # Short texts: the model reads 24 tokens.
    texts = ["The cat sat on the mat.", "A man is eating food.", "Hello, World!"]
    ranks = httpx.post(URL + "/rerank", json={"query": "where is the cat?", "texts": texts, "model": "reranker"}).json()
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts]
    rerank = Rerank(base_url=URL, top_n=2, model_name="reranker")
    got = rerank.postprocess_nodes(nodes, QueryBundle("where is the cat?"))
    assert [node.node.get_content() for node in got] == [texts[rank["index"]] for rank in ranks[:2]]
    assert all(abs(node.score - rank["score"]) < 1e-5 for node, rank in zip(got, ranks))
