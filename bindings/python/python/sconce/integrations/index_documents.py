"""What the vector stores over an `Index` share."""

from ..index import Index

# Passages that are searched for each document that is wanted: long documents have several.
_PASSAGES = 4
_MOST = 1000


def opened(index, options):
    """The index, which may be given by its path."""
    if isinstance(index, Index):
        if options:
            raise TypeError(f"{', '.join(options)}: give options to the Index itself")
        return index
    return Index(index, **options)


def find(index, query, count, **options):
    """Up to `count` pairs of a hit and the added document that it is of.

    A vector store returns what was added to it, each document once and whole. Of files it returns
    passages; the second of the pair is None then.
    """
    if count <= 0:
        return []
    hits = index.search(query, min(count * _PASSAGES, _MOST), **options)
    added = added_documents(index, {hit.path for hit in hits})
    found, seen = [], set()
    for hit in hits:
        document = added.get(hit.path)
        if document is None or hit.path not in seen:
            seen.add(hit.path)
            found.append((hit, document))
    return found[:count]


def added_documents(index, ids):
    """The documents of these ids that no file holds, with their texts, by id."""
    ids = list(ids)
    infos = zip(ids, index.get(ids, text=False))
    added = [key for key, info in infos if info is not None and info.modified is None]
    return {key: document for key, document in zip(added, index.get(added)) if document is not None}


def all_added(index):
    """All documents that no file holds, without their texts."""
    return [document for document in index.documents() if document.modified is None]


def place(hit):
    """Where a passage of a file is, as metadata."""
    places = {name: getattr(hit, name) for name in ("title", "heading", "line", "page", "row")}
    return {name: value for name, value in places.items() if value is not None}
