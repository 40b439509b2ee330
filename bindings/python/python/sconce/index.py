"""`Index`: documents, embeddings, full text and search in one file."""

import json
import os
import sys
import threading
import uuid
import weakref

from . import _sconce
from .errors import ClosedError, InputError
from .json_options import to_json
from .models import Model, load_options
from .passages import Hit, IndexedDocument, Passage
from .progress import bar, logger
from .texts import as_texts

# Every open index, which is told of forks.
_open = weakref.WeakSet()
_DEFAULT_MODEL = "minilm"
# The tasks that load the model of an index, by the kind of its embeddings.
_TASKS = {"dense": "embed", "sparse": "sparse", "multi_vector": "multi"}
# Documents of one call of the extension module.
_PAGE = 1000
# What a process runs to parse files. It imports the extension module alone, and nothing from the
# working directory, which may be the folder that is indexed.
_PARSER = """\
import sys
sys.path[:] = [path for path in sys.path if path]
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("_sconce", sys.argv[1])
module = module_from_spec(spec)
spec.loader.exec_module(module)
sys.exit(module.run_command(["sconce", "parse-files"]))
"""


class _IndexModel(Model):
    """The embedding model that an index loads by itself."""

    def __init__(self, name, task, options):
        self._task = task
        self._load(name, **options)


class _Reranker(Model):
    """A reranker that an index loads by its name."""

    _task = "rerank"

    def __init__(self, name, options):
        self._load(name, **options)


class Index:
    """Documents, their embeddings and full text in one file, and search in it.

    `model` is the name of an embedding model (dense, sparse or multi-vector), or a
    `SentenceTransformer`, `SparseEncoder` or `MultiVectorEncoder`. An index keeps the name of its
    model and loads it when it is needed; a new one takes `SCONCE_MODEL`, or else `minilm`. The
    other options are those of the models that the index loads.

    Any number of threads and processes search while one writes. Pickling keeps the path and the
    options; the other process opens the file.
    """

    _is_closed = False

    def __init__(
        self,
        path,
        model=None,
        *,
        create=True,
        read_only=False,
        device=None,
        dtype=None,
        cache_folder=None,
        local_files_only=False,
        token=None,
        batch_tokens=None,
    ):
        self._path = os.path.abspath(os.fspath(path))
        self._create, self._read_only = bool(create), bool(read_only)
        self._chosen = _chosen_model(model)
        self._options = load_options(
            device=device,
            dtype=dtype,
            cache_folder=cache_folder,
            local_files_only=local_files_only,
            token=token,
            batch_tokens=batch_tokens,
        )
        self._begin()

    def _begin(self):
        self._lock = threading.RLock()
        self._model, self._embedder, self._rerankers = None, None, {}
        self._open()

    def _open(self):
        self._native = _sconce.open_index(self._path, self._create and not self._read_only, self._read_only)
        self._forks = _sconce.fork_count()
        _open.add(self)

    @property
    def _index(self):
        """The open index; in a forked process, opened again."""
        if getattr(self, "_native", None) is None:
            raise TypeError("Index was not initialized")
        if self._is_closed:
            raise ClosedError(f"the index {self._path} is closed; open it again")
        if self._forks != _sconce.fork_count():
            with self._lock:
                if self._forks != _sconce.fork_count():
                    self._open()
        return self._native

    @property
    def path(self):
        """The index's file."""
        return self._path

    @property
    def model(self):
        """The model of the embeddings: its name, revision, kind and dimensions; None if nothing was embedded so far."""
        return json.loads(self._index.model() or "null")

    def update(
        self,
        paths,
        *,
        progress=None,
        hidden=False,
        ignore_files=True,
        chunk_tokens=None,
        chunk_overlap=None,
        prune=True,
        rebuild=False,
    ):
        """Brings the index up to date with files and folders, and returns what was done, a dict.

        `progress=True` shows a bar; a function is called several times per second with a dict. An
        interrupted run keeps what it has committed, and the next one goes on from there. `hidden`
        reads hidden files too, `ignore_files=False` files that .gitignore excludes, `prune=False`
        keeps files that are not there any more, and `rebuild` discards the index first.
        """
        paths = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
        options = {"hidden": hidden, "ignore_files": ignore_files, "prune": prune, "rebuild": rebuild}
        options |= {"chunk_tokens": chunk_tokens, "chunk_overlap": chunk_overlap}
        shown = _Progress(progress)
        try:
            native, model = self._index, self._embedding_model()
            report = native.update(model, [os.fsdecode(path) for path in paths], to_json(options), _parser(), shown)
        finally:
            shown.close()
        return json.loads(report)

    def add(self, documents, ids=None, metadata=None, *, titles=None, kind="text"):
        """Adds texts and returns their ids; a document with the same id is replaced.

        `documents` are texts, or dicts with `text` and, where they have one, `id`, `title`, `kind`
        and `metadata`. `metadata` is a dict for each document, or one for all: its values are
        texts, numbers, booleans or None. `kind` is `text`, `markdown` or a programming language,
        and decides where chunks end. The documents of one call become visible together.
        """
        items = _documents(documents, ids, metadata, titles, kind)
        if items:
            native, model = self._index, self._embedding_model()
            native.add(model, to_json(items))
        return [item["id"] for item in items]

    def remove(self, ids):
        """Removes added documents by their ids, and files by their paths. Returns how many there were."""
        return self._index.remove([ids] if isinstance(ids, str) else list(ids))

    def search(self, query, limit=10, mode=None, filter=None, rerank=None, *, vector=None, candidates=None):
        """Finds passages, best first: a list of `Hit`.

        `mode` is `hybrid` (the default), `dense`, `bm25`, `sparse` or `multi_vector`. `filter` is a
        condition on the metadata, such as `year>=2020` or `path:docs/*`, a dict in the form of
        OpenAI's vector stores, or a list of these, which must all pass. `rerank` is a
        `CrossEncoder`, or the name of one: it orders the best `candidates` anew. `vector` is the
        embedding of the query, which is computed otherwise.
        """
        native, embedder = self._index, None
        reranker = None if rerank is None else self._reranker(rerank)
        if mode != "bm25" and vector is None and native.model() is not None:
            embedder = self._embedding_model()
        options = {"limit": limit, "mode": mode, "filter": filter, "vector": vector, "candidates": candidates}
        options = {name: value for name, value in options.items() if value is not None}
        return [Hit(**hit) for hit in json.loads(native.search(query, to_json(options), embedder, reranker))]

    def passage(self, chunk, before=1, after=1):
        """The passage of a hit, or of its `chunk`, with so many chunks before and after it.

        None if there is no such chunk any more.
        """
        chunk = chunk.chunk if isinstance(chunk, Hit) else chunk
        found = json.loads(self._index.passage(chunk, before, after) or "null")
        return None if found is None else Passage(**found | {"document": IndexedDocument(**found["document"])})

    def documents(self, prefix=None):
        """All documents, or those whose path or id begins with `prefix`, without their texts: a generator."""
        last = None
        while True:
            page = json.loads(self._index.documents(last, _PAGE, prefix))
            for document in page:
                yield IndexedDocument(**document)
            if len(page) < _PAGE:
                return
            last = page[-1]["id"]

    def get(self, ids, *, text=True):
        """The documents of these ids or paths, with their texts; None for each that does not exist.

        A single id gives a single document. Of a table it is the first row.
        """
        found = json.loads(self._index.get([ids] if isinstance(ids, str) else list(ids), text))
        documents = [None if document is None else IndexedDocument(**document) for document in found]
        return documents[0] if isinstance(ids, str) else documents

    def status(self):
        """What the index has, a dict: its model, paths, numbers of files, documents and chunks."""
        return json.loads(self._index.status())

    def close(self):
        """Closes the file, and unloads the models that the index has loaded, when the calls in progress have ended."""
        self._is_closed = True
        native = getattr(self, "_native", None)
        if native is not None:
            native.close()
            with self._lock:
                own = [*self._rerankers.values(), *([self._model] if isinstance(self._model, _IndexModel) else [])]
                self._model, self._embedder, self._rerankers = None, None, {}
            for model in own:
                model.close()
        _open.discard(self)

    def _embedding_model(self):
        """The model as the extension module takes it, loaded at its first use."""
        with self._lock:
            if self._model is None:
                self._model = self._load_model()
            native = self._model._model  # In a forked process, loaded again.
            if self._embedder is None or self._embedder[0] is not native:
                self._embedder = native, _sconce.index_model(native, self._model._name, _prompts(self._model))
            return self._embedder[1]

    def _load_model(self):
        if isinstance(self._chosen, Model):
            return self._chosen
        known = self.model
        if self._chosen is None and known is not None:
            return _IndexModel(known["name"], _TASKS[known["kind"]], self._options)
        name = self._chosen or os.environ.get("SCONCE_MODEL") or _DEFAULT_MODEL
        return _IndexModel(name, "embedding", self._options)

    def _reranker(self, model):
        if isinstance(model, Model):
            return model._model
        name = os.fspath(model)
        with self._lock:
            if name not in self._rerankers:
                # Its own format: `dtype` and `batch_tokens` are meant for the embedding model.
                own = {key: value for key, value in self._options.items() if key not in ("dtype", "batch_tokens")}
                self._rerankers[name] = _Reranker(name, own)
            return self._rerankers[name]._model

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getstate__(self):
        options = {name: value for name, value in self._options.items() if name != "token"}
        names = ("_path", "_create", "_read_only", "_chosen")
        return {name: getattr(self, name) for name in names} | {"_options": options}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin()

    def __repr__(self):
        return f"Index({getattr(self, '_path', None)!r})"


class _Progress:
    """Passes the progress of a run on to a function, or shows it as a bar."""

    def __init__(self, progress):
        self._function = progress if callable(progress) else None
        self._shows = logger.isEnabledFor(20) if progress is None else bool(progress) and self._function is None
        self._bar, self._done = None, 0

    def __call__(self, _kind, text, _number):
        if self._function is None and not self._shows:
            return
        progress = json.loads(text)
        if self._function is not None:
            self._function(progress)
        elif progress["phase"] != "walking":
            if self._bar is None:
                self._bar = bar(progress["found"], "Indexing", "files")
            self._bar.update(progress["files"] - self._done)
            self._done = progress["files"]

    def close(self):
        if self._bar is not None:
            self._bar.close()


def _chosen_model(model):
    """The model that the caller chose: a loaded one, a name, or None."""
    if isinstance(model, Model):
        if model._task not in _TASKS.values():
            raise InputError(f"{type(model).__name__} does not embed texts; an index needs a model that does")
        return model
    if model is None:
        return None
    name = os.fspath(model)
    # The working directory may be another one when the model is loaded.
    return os.path.abspath(name) if os.path.exists(name) else name


def _prompts(model):
    """The prompts before passages and queries; None where they are those of the model's files."""
    if isinstance(model, _IndexModel):
        return None, None
    prompts = getattr(model, "prompts", {})
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)), None)
    return passage, prompts.get("query") or None


def _documents(documents, ids, metadata, titles, kind):
    """Dicts as the extension module takes them."""
    items = [documents] if isinstance(documents, (str, dict)) else documents
    if isinstance(items, (list, tuple)) and any(isinstance(item, dict) for item in items):
        items = [dict(item) if isinstance(item, dict) else {"text": item} for item in items]
    else:
        items = [{"text": text} for text in as_texts(items)[0]]
    metadata = [metadata] * len(items) if isinstance(metadata, dict) else metadata
    for name, values in (("id", [ids] if isinstance(ids, str) else ids), ("metadata", metadata), ("title", titles)):
        if values is None:
            continue
        values = list(values)
        if len(values) != len(items):
            raise InputError(f"{len(items)} documents, but {len(values)} values of `{name}`")
        for item, value in zip(items, values):
            item[name] = value
    for item in items:
        item.setdefault("kind", kind)
        if item.get("id") is None:
            item["id"] = str(uuid.uuid4())
    return items


def _parser():
    """The command of the process that parses files of untrusted formats."""
    program = os.environ.get("SCONCE_PROGRAM")
    if program:
        return [program, "parse-files"]
    if not sys.executable:
        raise InputError("this interpreter does not know its own program; set SCONCE_PROGRAM to the script `sconce`")
    return [sys.executable, "-c", _PARSER, _sconce.__file__]


def before_fork():
    """Closes idle connections of SQLite, which must not be carried into another process."""
    for index in list(_open):
        try:
            if index._forks == _sconce.fork_count():
                index._native.close_idle()
        except ClosedError:  # By another thread.
            pass


def after_fork():
    """Gives every index a new lock: another thread may have held the old one during the fork."""
    for index in list(_open):
        index._lock = threading.RLock()
