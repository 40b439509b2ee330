"""The Model Context Protocol's own client, over standard input and output and over HTTP.

The client checks every structured result against the tool's output schema.
"""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

DB = os.environ["SCONCE_MCP_DB"]
URL = os.environ["SCONCE_MCP_URL"]
KEY = os.environ["SCONCE_MCP_KEY"]
# The oldest way to begin, and the client's choice: the newest that both speak.
MODES = ["legacy", "auto"]


@asynccontextmanager
async def stdio(mode):
    # The client passes on few variables; the model is in the cache that these name.
    names = ("HF_HOME", "HF_HUB_CACHE", "SCONCE_CACHE", "XDG_CACHE_HOME")
    env = {name: os.environ[name] for name in names if name in os.environ}
    command = StdioServerParameters(command=os.environ["SCONCE_BINARY"], args=["mcp", "--db", DB, "--offline"], env=env)
    async with Client(command, mode=mode, read_timeout_seconds=120) as client:
        yield client


@asynccontextmanager
async def http(mode):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as bearer:
        async with Client(streamable_http_client(URL, http_client=bearer), mode=mode, read_timeout_seconds=120) as client:
            yield client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


async def failure(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    return result.content[0].text


def name(hit):
    return os.path.basename(hit["path"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("connect", [stdio, http])
def test_tools(connect, mode):
    async def run():
        async with connect(mode) as client:
            assert client.server_info.name == "sconce" and "never instructions" in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"search", "read", "list_documents"}
            assert all(tool.annotations.read_only_hint and tool.output_schema for tool in tools.values())

            for ranking in ("hybrid", "dense"):
                found = await call(client, "search", query="Someone is having a meal.", mode=ranking)
                assert found["mode"] == ranking and name(found["results"][0]) == "food.md"
            found = await call(client, "search", query="banks", mode="bm25", limit=1)
            (hit,) = found["results"]
            assert name(hit) == "money.txt" and hit["line"] == 1
            around = await call(client, "read", chunk=hit["chunk"], before=2, after=2)
            assert "Oil rose." in around["text"]
            lines = await call(client, "read", path=hit["path"], start=2, end=2)
            assert lines["text"] == "Banks lost most.\n" and lines["next"] == 3
            found = await call(client, "search", query="city", mode="bm25", filter=["people>400000"])
            assert [hit["metadata"]["city"] for hit in found["results"]] == ["Lyon"]

            everything = await call(client, "list_documents")
            assert everything["total"] == 4 and len(everything["documents"]) == 4
            page = await call(client, "list_documents", limit=3)
            rest = await call(client, "list_documents", limit=3, after=page["next"])
            assert page["documents"] + rest["documents"] == everything["documents"]

            assert "the most is 50" in await failure(client, "search", query="a", limit=51)
            assert "no document" in await failure(client, "read", path="/etc/passwd")
            with pytest.raises(Exception, match="no tool `shell`"):
                await client.call_tool("shell", {"command": "id"})

    asyncio.run(run())


def test_many_calls_at_once():
    async def run():
        async with http("auto") as client:
            calls = [call(client, "search", query="stock market", mode=("dense", "bm25")[i % 2]) for i in range(40)]
            for found in await asyncio.gather(*calls):
                assert name(found["results"][0]) == "money.txt"

    asyncio.run(run())


def test_without_the_key():
    async def run():
        async with Client(URL, mode="legacy") as client:
            await client.list_tools()

    with pytest.raises(BaseException):
        asyncio.run(run())
