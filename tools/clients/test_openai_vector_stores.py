"""openai: files and vector stores."""

import asyncio
import io
import time

import httpx
import openai
import pytest
from conftest import LOCKED_KEY, URL

TEXTS = {
    "cats.txt": "The cat sat on the mat. A kitten sleeps in the sun.",
    "stars.md": "# Astronomy\n\nA telescope shows the rings of Saturn.",
    "money.html": "<html><head><title>News</title><script>evil()</script></head><body><p>The stock market fell.</p></body></html>",
    "people.csv": "name,job\nAda,mathematician\nGrace,admiral\n",
}


@pytest.fixture
def files(client):
    made = {name: client.files.create(file=(name, text.encode()), purpose="assistants") for name, text in TEXTS.items()}
    yield made
    for file in made.values():
        try:
            client.files.delete(file.id)
        except openai.NotFoundError:
            pass


@pytest.fixture
def store(client):
    store = client.vector_stores.create(name="notes", metadata={"team": "a"}, extra_body={"embedding_model": "minilm"})
    yield store
    client.vector_stores.delete(store.id)


def test_files(client):
    made = [client.files.create(file=io.BytesIO(b"%d" % i * 1000), purpose="user_data") for i in range(3)]
    assert [file.status for file in made] == ["processed"] * 3 and made[0].bytes == 1000
    assert client.files.wait_for_processing(made[0].id) == client.files.retrieve(made[0].id) == made[0]
    assert client.files.content(made[2].id).read() == b"2" * 1000
    # The iterator follows the pages.
    listed = [file.id for file in client.files.list(purpose="user_data", limit=2, order="asc")]
    assert listed == [file.id for file in made]
    for file in made:
        deleted = client.files.delete(file.id)
        assert deleted.deleted and deleted.id == file.id
    assert not client.files.list(purpose="user_data").data
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made[0].id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.files.create(file=b"x", purpose="nonsense")
    assert caught.value.param == "purpose"
    kept = client.files.create(file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert kept.expires_at == kept.created_at + 3600
    client.files.delete(kept.id)


def test_a_store_from_files(client, files):
    store = client.vector_stores.create(file_ids=[file.id for file in files.values()], name="all")
    while (store := client.vector_stores.retrieve(store.id)).status == "in_progress":
        time.sleep(0.1)
    assert store.file_counts.completed == store.file_counts.total == 4, client.vector_stores.files.list(store.id)
    for query, name in [
        ("a pet that naps", "cats.txt"),
        ("planets", "stars.md"),
        ("shares lost value", "money.html"),
        ("Grace", "people.csv"),
    ]:
        for ranker in ["auto", "none"]:
            found = client.vector_stores.search(store.id, query=query, ranking_options={"ranker": ranker})
            assert found.data[0].filename == name, (query, ranker, found.data)
            assert 0 <= found.data[0].score <= 1 and found.data[0].content[0].type == "text"
    assert "evil" not in client.vector_stores.files.content(files["money.html"].id, vector_store_id=store.id).data[0].text
    rows = [part.text for part in client.vector_stores.files.content(files["people.csv"].id, vector_store_id=store.id)]
    assert len(rows) == 2 and "mathematician" in rows[0]
    # A deleted file is not found any more.
    client.files.delete(files["cats.txt"].id)
    assert "cats.txt" not in [hit.filename for hit in client.vector_stores.search(store.id, query="cat")]
    assert client.vector_stores.delete(store.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(store.id)


def test_files_of_a_store(client, files, store):
    file = client.vector_stores.files.create_and_poll(
        files["cats.txt"].id,
        vector_store_id=store.id,
        attributes={"year": 2020, "draft": False, "who": "ann"},
        chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}},
    )
    assert file.status == "completed" and file.attributes == {"year": 2020, "draft": False, "who": "ann"}
    assert file.chunking_strategy.static.max_chunk_size_tokens == 100
    other = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("more.txt", b"Dogs bark."))
    assert other.status == "completed"
    assert [f.id for f in client.vector_stores.files.list(store.id, order="asc")] == [file.id, other.id]
    assert len(client.vector_stores.files.list(store.id, filter="failed").data) == 0

    def found(**filters):
        return [hit.filename for hit in client.vector_stores.search(store.id, query="animals", filters=filters)]

    assert found(type="eq", key="year", value=2020) == ["cats.txt"]
    assert found(type="ne", key="year", value=2020) == ["more.txt"]
    client.vector_stores.files.update(other.id, vector_store_id=store.id, attributes={"year": 2021})
    both = [{"type": "gt", "key": "year", "value": 2019}, {"type": "lt", "key": "year", "value": 2022}]
    assert sorted(found(type="and", filters=both)) == ["cats.txt", "more.txt"]
    assert client.vector_stores.files.delete(other.id, vector_store_id=store.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.files.retrieve(other.id, vector_store_id=store.id)
    client.files.delete(other.id)


def test_file_batches(client, files, store):
    ids = [file.id for file in files.values()]
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=ids)
    assert batch.status == "completed" and batch.file_counts.completed == len(ids)
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, limit=3)
    assert len(listed.data) == 3 and len(list(listed)) == len(ids)
    cancelled = client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
    assert cancelled.status == "completed", "nothing was left to cancel"
    more = client.vector_stores.file_batches.upload_and_poll(store.id, files=[("a.txt", b"One."), ("b.bin", b"\0\1")])
    assert (more.file_counts.completed, more.file_counts.failed) == (1, 1)
    failed = client.vector_stores.file_batches.list_files(more.id, vector_store_id=store.id, filter="failed").data
    assert failed[0].last_error.code == "unsupported_file"
    for file in client.vector_stores.file_batches.list_files(more.id, vector_store_id=store.id):
        client.files.delete(file.id)


def test_stores(client, store):
    assert client.vector_stores.retrieve(store.id).metadata == {"team": "a"}
    changed = client.vector_stores.update(store.id, name="other", expires_after={"anchor": "last_active_at", "days": 3})
    assert changed.name == "other" and changed.expires_at == changed.last_active_at + 3 * 86_400
    assert client.vector_stores.update(store.id, expires_after=None).expires_at is None
    others = [client.vector_stores.create(name=str(i)) for i in range(3)]
    listed = [s.id for s in client.vector_stores.list(limit=2)]
    assert listed[:3] == [s.id for s in reversed(others)] and store.id in listed
    for other in others:
        client.vector_stores.delete(other.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.vector_stores.search(store.id, query="x", rewrite_query=True)
    assert caught.value.param == "rewrite_query"


def test_many_searches_while_files_are_indexed(client, files, store):
    client.vector_stores.files.create_and_poll(files["stars.md"].id, vector_store_id=store.id)
    filler = "\n\n".join(f"Paragraph {i} is about the weather in town number {i}." for i in range(3000))
    large = client.vector_stores.files.upload(vector_store_id=store.id, file=("large.txt", filler.encode()))

    async def run():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", timeout=120) as many:
            search = many.vector_stores.search(store.id, query="rings of Saturn")
            searches = [search] + [many.vector_stores.search(store.id, query="rings of Saturn") for _ in range(199)]
            return await asyncio.gather(*searches)

    for page in asyncio.run(run()):
        assert page.data[0].filename == "stars.md"
    client.files.delete(large.id)


def test_a_server_without_a_folder_says_so(locked):
    with pytest.raises(openai.NotFoundError) as caught:
        locked.files.list()
    assert "--data-dir" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        locked.vector_stores.create()
    assert httpx.get(str(locked.base_url) + "files", headers={"authorization": "Bearer x" + LOCKED_KEY}).status_code == 401
