"""LangChain's OpenAI and Hugging Face classes."""

import asyncio

from conftest import TEXTS, URL, same
from langchain_core.tools import tool
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field


def test_openai_embeddings(vectors):
    embeddings = OpenAIEmbeddings(model="minilm", base_url=URL + "/v1", api_key="none", check_embedding_ctx_length=False)
    same(embeddings.embed_documents(TEXTS), vectors)
    same(embeddings.embed_query(TEXTS[1]), vectors[1])
    same(asyncio.run(embeddings.aembed_documents(TEXTS)), vectors)


def test_endpoint_embeddings(vectors):
    # Recent versions refuse a URL as `model`, but the client's own argument still takes one.
    embeddings = HuggingFaceEndpointEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2", model_kwargs={"model": URL})
    same(embeddings.embed_documents(TEXTS), vectors)
    same(embeddings.embed_query(TEXTS[1]), vectors[1])


def chat(**more):
    return ChatOpenAI(model="smollm", base_url=URL + "/v1", api_key="none", max_retries=0, **{"temperature": 0, "max_tokens": 24, **more})


def test_chat(greedy):
    answer = chat().invoke("Name three colours.")
    assert answer.content == greedy
    assert answer.usage_metadata["output_tokens"] == 24 and answer.response_metadata["finish_reason"] == "length"
    assert "".join(chunk.content for chunk in chat().stream("Name three colours.")) == greedy
    assert asyncio.run(chat().ainvoke("Name three colours.")).content == greedy
    assert [answer.content for answer in chat().batch(["Name three colours."] * 3)] == [greedy] * 3


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def test_tools():
    bound = chat(max_tokens=200).bind_tools([multiply], tool_choice="multiply")
    (call,) = bound.invoke("What is 6 times 7?").tool_calls[:1]
    assert call["name"] == "multiply" and multiply.invoke(call["args"]) == call["args"]["a"] * call["args"]["b"]
    chunks = None
    for chunk in bound.stream("What is 6 times 7?"):
        chunks = chunk if chunks is None else chunks + chunk
    assert chunks.tool_calls[0]["args"] == call["args"]


class Mood(BaseModel):
    """A mood."""

    mood: str = Field(max_length=12)
    strength: int = Field(ge=1, le=5)


def test_structured_output():
    for method in ("json_schema", "function_calling"):
        mood = chat(max_tokens=200).with_structured_output(Mood, method=method).invoke("I am happy.")
        assert isinstance(mood, Mood) and 1 <= mood.strength <= 5, method
