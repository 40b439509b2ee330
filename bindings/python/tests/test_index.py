"""`Index`: files and added documents, searches, other processes, interrupts."""

import os
import pickle
import sys
import threading
import time
from multiprocessing import get_context

import pytest
from conftest import MINILM
from processes import run

import sconce.index
from sconce import (
    ClosedError,
    CrossEncoder,
    FilesError,
    Hit,
    Index,
    IndexedDocument,
    InputError,
    SentenceTransformer,
    SparseEncoder,
    Tagger,
)

TEXTS = {
    "cat": "The cat sat on the mat.",
    "food": "A man is eating food.",
    "train": "The train to Paris leaves at noon.",
}
METADATA = [{"year": 2019, "tag": "animal"}, {"year": 2020, "tag": "meal"}, {"year": 2021, "tag": None}]


@pytest.fixture
def index(tmp_path, minilm):
    with Index(tmp_path / "test.db", minilm) as index:
        index.add(list(TEXTS.values()), list(TEXTS), METADATA)
        yield index


@pytest.fixture
def folder(tmp_path):
    """A folder with files of several formats."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "notes.md").write_text("# Trains\n\nThe train to Paris leaves at noon.\n")
    page = "<html><head><title>Lunch</title></head><body><p>A man is eating food.</p></body></html>"
    (folder / "page.html").write_text(page)
    (folder / "rows.csv").write_text("text,year\nThe cat sat on the mat.,2019\nA dog barks.,2021\n")
    (folder / ".env").write_text("PASSWORD=secret\n")
    return folder


def paths(hits):
    return [os.path.basename(hit.path) for hit in hits]


def test_files(folder, tmp_path, minilm):
    with Index(tmp_path / "test.db", minilm) as index:
        assert index.model is None and index.search("anything") == []
        report = index.update(folder)
        assert (report["indexed"], report["failed"]) == (3, []), report
        assert index.model["name"] == MINILM and index.model["dimensions"] == 384
        status = index.status()
        assert (status["files"], status["documents"], status["database"]) == (3, 4, index.path)

        hit = index.search("When does the train go?")[0]
        assert paths([hit]) == ["notes.md"] and "noon" in str(hit) and hit.line >= 1 and hit.page is None
        assert set(hit.ranks) == {"dense", "bm25"} and hit.ranks["dense"]["rank"] == 1
        (hit,) = index.search("eating", mode="bm25")
        assert paths([hit]) == ["page.html"] and hit.title == "Lunch"
        assert [hit.snippet[start:end] for start, end in hit.highlights] == ["eating"]
        hit = index.search("pet", filter="year>=2020", mode="dense")[0]
        assert (paths([hit]), hit.row, hit.metadata["year"]) == (["rows.csv"], 2, 2021)

        assert index.update([folder])["unchanged"] == 3
        (folder / "page.html").unlink()
        (folder / "notes.md").rename(folder / "trains.md")
        report = index.update(str(folder), prune=False)
        assert (report["renamed"], report["removed"]) == (1, 0)
        assert index.update(folder)["removed"] == 1
        assert {os.path.basename(document.path) for document in index.documents()} == {"trains.md", "rows.csv"}
        assert index.search("eating", mode="bm25") == []


def test_added_documents(index):
    hit = index.search("lunch")[0]
    assert (hit.path, hit.text, hit.metadata, hit.line) == ("food", TEXTS["food"], METADATA[1], None)
    # Of an id that there is, the document is replaced.
    (key,) = index.add("A woman has dinner.", ids="food", metadata={"year": 2022})
    assert key == "food" and index.get("food").text == "A woman has dinner."
    generated = index.add([{"text": "One."}, {"text": "Two.", "id": "two", "title": "Second", "kind": "markdown"}])
    assert generated[1] == "two" and len(generated[0]) == 36
    found = index.get(["two", "no such id", "cat"])
    assert [document and document.title for document in found] == ["Second", None, None] and found[1] is None
    assert found[0].kind == "markdown" and found[2].modified is None
    assert index.get(["cat"], text=False)[0].text is None
    assert {document.path for document in index.documents()} == {*TEXTS, *generated}
    assert [document.path for document in index.documents(prefix="tw")] == ["two"]
    assert index.remove(["two", "no such id"]) == 1 and index.remove(generated[0]) == 1
    assert index.add([]) == [] and index.remove([]) == 0
    assert index.get("two") is None and index.search("second", mode="bm25") == []


def test_passages(tmp_path, minilm):
    text = "\n\n".join(f"Section {i} is about the number {i}. " * 40 for i in range(6))
    with Index(tmp_path / "test.db", minilm) as index:
        index.add([text], ["long"])
        hits = index.search("section 3", limit=100, mode="dense")
        assert len(hits) > 3
        start, end = hits[0].bytes
        assert text.encode()[start:end].decode() == hits[0].text
        alone, around = index.passage(hits[0], 0, 0), index.passage(hits[0].chunk)
        assert alone.text == hits[0].text and alone.text in around.text and len(around.text) > len(alone.text)
        start, end = around.passage
        assert around.text[start:end] == alone.text
        assert isinstance(around.document, IndexedDocument) and around.document.chunks == len(hits)
        assert index.passage(1 << 40) is None


def test_modes_and_filters(index):
    assert index.search("lunch", mode="bm25") == []
    assert [hit.path for hit in index.search("food", mode="bm25")] == ["food"]
    dense = index.search("food", mode="dense")
    assert len(dense) == 3 and dense[0].path == "food" and -1 <= dense[2].score <= dense[0].score <= 1
    assert [hit.path for hit in index.search("food", limit=1)] == ["food"]
    vector = index._model.encode_query("food")
    assert [hit.path for hit in index.search("", mode="dense", vector=vector)] == [hit.path for hit in dense]
    eq = {"type": "eq", "key": "tag", "value": "animal"}
    for filter, want in [
        ("year>=2020", {"food", "train"}),
        (eq, {"cat"}),
        (["year>=2019", "year<2021"], {"cat", "food"}),
        ([eq, "year=2020"], set()),
        ({"type": "or", "filters": [eq, {"type": "gt", "key": "year", "value": 2020}]}, {"cat", "train"}),
        ("tag!=meal", {"cat", "train"}),
        ("path:t*", {"train"}),
    ]:
        assert {hit.path for hit in index.search("something", filter=filter)} == want, filter


def test_rerankers(index, golden):
    encoder = CrossEncoder(golden("task-rerank"))
    want = [list(TEXTS)[hit["corpus_id"]] for hit in encoder.rank("cat", list(TEXTS.values()))]
    for reranker in (encoder, golden("task-rerank"), str(golden("task-rerank"))):
        hits = index.search("cat", mode="dense", rerank=reranker)
        assert [hit.path for hit in hits] == want
        assert [hit.ranks["reranker"]["rank"] for hit in hits] == [1, 2, 3]
    assert len(index._rerankers) == 1
    with pytest.raises(InputError, match="rerank"):
        index.search("cat", rerank=index._model)


def test_the_model_belongs_to_the_index(index, golden, tmp_path):
    # The name in the file finds it again.
    with Index(index.path) as again:
        assert [hit.path for hit in again.search("lunch", limit=1)] == ["food"]
    with Index(index.path, golden("st-prompts")) as other:
        with pytest.raises(InputError, match="made with"):
            other.add("text")
        with pytest.raises(InputError, match="made with"):
            other.search("text")
        assert len(other.search("food", mode="bm25")) == 1
        (tmp_path / "a.txt").write_text("Another text.")
        assert other.update(tmp_path / "a.txt", rebuild=True)["indexed"] == 1
        assert paths(other.search("text")) == ["a.txt"]
    with pytest.raises(InputError, match="made with"):
        index.search("text", mode="dense")


def test_sparse_models(golden, tmp_path):
    for model in (SparseEncoder(golden("task-sparse")), golden("task-sparse")):
        with Index(tmp_path / "sparse.db", model) as index:
            index.add(list(TEXTS.values()), list(TEXTS))
            assert index.model["kind"] == "sparse"
            assert {hit.path for hit in index.search("cat", mode="sparse")} <= set(TEXTS)
            with pytest.raises(InputError, match="sparse"):
                index.search("cat", mode="dense")
    with Index(tmp_path / "sparse.db") as index:
        index.search("cat")
        assert index._model._task == "sparse"


def test_wrong_arguments(index, golden, tmp_path):
    for options in ({"mode": "best"}, {"limit": -1}, {"limit": 10**6}, {"filter": "nonsense"}, {"filter": 3}):
        with pytest.raises(InputError):
            index.search("cat", **options)
    with pytest.raises(InputError, match="empty"):
        index.search("")
    for bad in (None, 3, b"text", [3], [None], "\ud800"):
        with pytest.raises((TypeError, ValueError)):
            index.add(bad)
        with pytest.raises((TypeError, ValueError)):
            index.search(bad)
    with pytest.raises(InputError, match="`tags`.*list"):
        index.add("text", metadata={"tags": ["a"]})
    with pytest.raises(InputError, match="2 documents, but 1"):
        index.add(["a", "b"], ids=["a"])
    with pytest.raises(InputError, match="unknown"):
        index.add({"text": "a", "colour": "red"})
    with pytest.raises(InputError, match="cobol"):
        index.add("text", kind="cobol")
    with pytest.raises(TypeError):
        index.remove(3)
    with pytest.raises(InputError, match="Tagger"):
        Index(tmp_path / "tagger.db", Tagger(golden("task-tag")))
    with pytest.raises(FilesError):
        Index(tmp_path / "missing.db", create=False)
    with pytest.raises(FilesError):
        Index(tmp_path)
    (tmp_path / "foreign.db").write_text("not a database")
    with pytest.raises(FilesError):
        Index(tmp_path / "foreign.db")
    with Index(index.path, read_only=True) as reader:
        assert len(reader.search("food", mode="bm25")) == 1
        with pytest.raises(FilesError, match="read"):
            reader.remove("food")
    with pytest.raises(TypeError, match="initialized"):
        Index.__new__(Index).search("a")
    assert len(list(index.documents())) == 3


def test_closed(index):
    index.close()
    index.close()
    for call in (lambda: index.search("a"), lambda: index.add("a"), index.status, lambda: next(index.documents())):
        with pytest.raises(ClosedError):
            call()
    # The caller's model is still open.
    assert index._chosen.encode("a").shape == (384,)


def test_progress(folder, tmp_path, minilm, capsys):
    seen = []
    with Index(tmp_path / "test.db", minilm) as index:
        index.update(folder, progress=seen.append)
        assert [seen[0]["phase"], seen[-1]["phase"]] == ["walking", "finishing"]
        assert seen[-1]["files"] == 3 and seen[-1]["chunks"] >= 4
        index.update(folder, progress=True)
        assert "Indexing" in capsys.readouterr().err

        def refuse(progress):
            raise KeyError(progress["phase"])

        with pytest.raises(KeyError):
            index.update(folder, progress=refuse, rebuild=True)
        # The interrupted run ends in the background, and this one waits for it.
        index.update(folder)
        assert index.status()["files"] == 3


def test_the_parser_imports_nothing_from_the_working_directory(folder, tmp_path, minilm, monkeypatch):
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("sconce", "_sconce", "importlib", "numpy", "site", "json"):
        (hostile / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').write({name!r})\n")
    monkeypatch.chdir(hostile)
    with Index(tmp_path / "test.db", minilm) as index:
        assert index.update(folder)["failed"] == []
    assert not (tmp_path / "imported").exists()


def test_pickling(index):
    copy = pickle.loads(pickle.dumps(index))
    assert copy.path == index.path and [hit.path for hit in copy.search("lunch", limit=1)] == ["food"]
    copy.close()
    hit = pickle.loads(pickle.dumps(index.search("lunch")[0]))
    assert isinstance(hit, Hit) and hit.path == "food"
    with Index(index.path, token="hf_secret") as secret:
        assert b"hf_secret" not in pickle.dumps(secret)


def test_other_processes(index):
    for method in ("fork", "spawn") if hasattr(os, "fork") else ("spawn",):
        with get_context(method).Pool(2) as pool:
            found = pool.map_async(index.search, ["lunch", "a pet", "journey"]).get(120)
        assert [hits[0].path for hits in found] == ["food", "cat", "train"], method
    index.add("A dog barks.", ids="dog")
    assert index.search("dog", mode="bm25")[0].path == "dog"


def test_threads_search_while_one_writes(index):
    stop, failures, searches = threading.Event(), [], [0]

    def search():
        try:
            while not stop.is_set():
                assert "food" in [hit.path for hit in index.search("eating food", mode="bm25")]
                searches[0] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    [thread.start() for thread in threads]
    writers = [threading.Thread(target=lambda i=i: index.add([f"Text {i}."], [f"t{i}"])) for i in range(8)]
    [thread.start() for thread in writers]
    [thread.join() for thread in writers]
    stop.set()
    [thread.join() for thread in threads]
    assert failures == [] and searches[0] > 0
    # Writers of one object take turns.
    assert len(list(index.documents(prefix="t"))) == 9


def test_other_threads_run_during_a_run(tmp_path, minilm):
    (tmp_path / "long.txt").write_text("some words of a text. " * 4000)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    with Index(tmp_path / "test.db", minilm) as index:
        begun = time.monotonic()
        index.update(tmp_path / "long.txt")
        took = time.monotonic() - begun
    stop.set()
    thread.join()
    # With the GIL held, it would be a few ticks.
    assert ticks[0] > took * 100, (ticks, took)


INTERRUPT = """
import os, signal, sys, threading, time
from sconce import Index
# Background jobs of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
index = Index(sys.argv[1], sys.argv[2], device="cpu")
index.add("The first document.", ids="first")
sent = []
def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(2.0, interrupt).start()
try:
    index.update(sys.argv[3])
except KeyboardInterrupt:
    took = time.monotonic() - sent[0]
    assert took < 5, took
assert index.search("first document", mode="bm25")[0].path == "first"
# Waits for the end of the interrupted run, which ends early.
index.add("The second document.", ids="second")
assert index.search("second", mode="bm25")[0].path == "second"
assert index.status()["files"] < 2000
print("interrupted")
"""


def test_ctrl_c_ends_a_run(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(3000):
        (folder / f"{i}.txt").write_text(f"Text {i} has some words of its own. " * 60)
    done = run(INTERRUPT, tmp_path / "test.db", MINILM, folder, timeout=120)
    assert done.stdout.strip() == "interrupted", done.stderr


FORK = """
import os, sys, time
from sconce import Index
index = Index(sys.argv[1], device="cpu")
assert index.search("lunch")[0].path == "food"
pid = os.fork()
if pid == 0:
    ok = index.search("lunch")[0].path == "food" and index.search("cat", mode="bm25")[0].path == "cat"
    index.add("A dog barks.", ids="dog")
    ok = ok and index.search("dog", mode="bm25")[0].path == "dog"
    os._exit(0 if ok else 1)
for _ in range(600):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(pid, 9)
    sys.exit("the child hangs")
print(os.waitstatus_to_exitcode(status), index.search("dog")[0].path, index.search("lunch")[0].path)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_opens_the_index_itself(index):
    index.close()
    done = run(FORK, index.path, timeout=120)
    assert done.stdout.split() == ["0", "dog", "food"], (done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_connection_is_carried_into_a_fork(index):
    def opened():
        links = []
        for number in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:  # The folder itself.
                pass
        return [link for link in links if link.startswith(index.path)]

    index.search("lunch")
    assert opened()
    sconce.index.before_fork()
    assert not opened()
    assert index.search("lunch")[0].path == "food"


def test_a_sentence_transformers_prompts(golden, tmp_path):
    prompts = {"query": "find: ", "document": "text: "}
    with Index(tmp_path / "test.db", SentenceTransformer(golden("st-prompts"), prompts=prompts)) as index:
        index.add(list(TEXTS.values()), list(TEXTS))
        index.search("cat", mode="dense")
    # The same files with their own prompts are another model.
    with Index(tmp_path / "test.db", golden("st-prompts")) as index:
        with pytest.raises(InputError, match="prompt"):
            index.search("cat", mode="dense")
