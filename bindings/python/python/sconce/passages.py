"""What an index returns: hits, passages and documents."""

from dataclasses import dataclass, field


@dataclass
class Hit:
    """A passage that a search found. `str(hit)` is its text.

    `path` is the file, or the id of an added document. `line`, `page` and `row` say where the
    passage begins, if its document has lines, pages or rows. `highlights` are ranges of `snippet`,
    in characters. `ranks` has the rank and the score in each ranking that found the passage.
    `bytes` is the passage's range in the document's text in UTF-8.
    """

    chunk: int
    document: int
    path: str
    text: str
    score: float
    title: str | None = None
    heading: str | None = None
    line: int | None = None
    page: int | None = None
    row: int | None = None
    snippet: str = ""
    highlights: list = field(default_factory=list)
    ranks: dict = field(default_factory=dict)
    metadata: dict = field(default_factory=dict)
    bytes: list = field(default_factory=list)

    def __str__(self):
        return self.text


@dataclass
class IndexedDocument:
    """A document of an index: a file, a row of a table, or an added document.

    `path` is the file, or the id of an added document. `modified` is the time of the file's last
    change, in seconds since 1970, and None for added documents. `text` is None unless it was asked
    for.
    """

    id: int
    path: str
    row: int | None
    title: str | None
    kind: str
    metadata: dict
    bytes: int
    chunks: int
    modified: float | None
    text: str | None = None


@dataclass
class Passage:
    """A passage with the text around it. `passage` is its range in `text`, in characters."""

    document: IndexedDocument
    text: str
    passage: list
    bytes: list
    heading: str | None = None
    line: int | None = None
    page: int | None = None

    def __str__(self):
        return self.text
