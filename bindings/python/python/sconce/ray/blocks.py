"""The blocks of a run: parts of the input files, each of which becomes one output file.

Blocks and the names of their files depend on nothing but the input files, so every run of the same
input has the same blocks.
"""

import json
import os
import posixpath
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import pyarrow
from pyarrow import fs as filesystems
from pyarrow import parquet

from ..errors import FilesError
from . import lines

# Rows that are computed and written at once, so that the memory of a block is bounded.
_WINDOW = 4096
# Files of attempts that have not ended. Readers of Parquet folders ignore names with an underscore.
_TEMPORARY = "_temporary"
# Files whose metadata are read at once, which takes a round trip to an object store each.
_READERS = 16
# Before the name of a block without rows, whose file says only that it is done.
_EMPTY = "_empty-"


@dataclass(frozen=True)
class Block:
    """A range of an input file: row groups of Parquet, bytes of JSONL (the lines that begin there)."""

    name: str
    path: str
    start: int
    end: int

    def to_json(self):
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text):
        return cls(**json.loads(text))


def open_filesystem(uri):
    """The file system of a URI (`s3://…`) or path, and the path in it."""
    uri = str(uri)
    if "://" in uri:
        return filesystems.FileSystem.from_uri(uri)
    return filesystems.LocalFileSystem(), os.path.abspath(uri)


def absolute(uri):
    """A path that means the same in every process: actors have working folders of their own."""
    return str(uri) if "://" in str(uri) else os.path.abspath(uri)


def join(uri, name):
    """A path inside of a folder that may be a URI with options."""
    base, question, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return posixpath.join(base, name) + question + options


def list_inputs(uris):
    """The Parquet and JSONL files of paths and folders, sorted: `[(uri, size, time of the last change)]`."""
    found = {}
    for uri in [uris] if isinstance(uris, (str, bytes)) or hasattr(uris, "__fspath__") else uris:
        files, path = open_filesystem(uri)
        info = files.get_file_info(path)
        if info.type == filesystems.FileType.NotFound:
            raise FilesError(f"{uri}: there is no such file or folder")
        if info.type == filesystems.FileType.Directory:
            inside = files.get_file_info(filesystems.FileSelector(path, recursive=True))
            chosen = [one for one in inside if one.is_file and not _is_hidden(one.path, path) and format_of(one.path)]
            if not chosen:
                raise FilesError(f"{uri}: the folder has no .parquet or .jsonl files")
        else:
            chosen = [info]
            if not format_of(info.path):
                raise FilesError(f"{uri}: only .parquet and .jsonl files can be read; for others give a Dataset of Ray")
        found |= {_with_path(str(uri), path, one.path): (one.size, one.mtime_ns) for one in chosen}
    return sorted((uri, size, changed) for uri, (size, changed) in found.items())


def list_blocks(inputs, rows_per_file, bytes_per_file):
    """The blocks of input files, in order. Those of Parquet have whole row groups, because a part of a
    group cannot be read without what is before it."""
    with ThreadPoolExecutor(_READERS) as readers:
        cuts = readers.map(lambda one: _cuts(one, rows_per_file, bytes_per_file), inputs)
        blocks = []
        for index, ((uri, *_), ends) in enumerate(zip(inputs, cuts)):
            for number, (start, end) in enumerate(zip([0, *ends], ends)):
                blocks.append(Block(f"part-{index:05}-{number:05}.parquet", uri, start, end))
    return blocks


def _cuts(source, rows_per_file, bytes_per_file):
    """Where the blocks of a file end."""
    uri, size, _ = source
    if format_of(uri) != "parquet":
        return [*range(bytes_per_file, size, bytes_per_file), size] if size else []
    files, path = open_filesystem(uri)
    with files.open_input_file(path) as file:
        metadata = parquet.ParquetFile(file).metadata
    ends, rows = [], 0
    for index in range(metadata.num_row_groups):
        rows += metadata.row_group(index).num_rows
        if rows >= rows_per_file or index + 1 == metadata.num_row_groups:
            ends.append(index + 1)
            rows = 0
    return ends


def read_block(block, schema=None):
    """The rows of a block, as Arrow tables of bounded size. JSONL has the columns of `schema`."""
    files, path = open_filesystem(block.path)
    with files.open_input_file(path) as file:
        if format_of(block.path) == "parquet":
            groups = range(block.start, block.end)
            for batch in parquet.ParquetFile(file).iter_batches(_WINDOW, row_groups=groups):
                yield pyarrow.Table.from_batches([batch])
        else:
            table = lines.read_table(file, block, schema)
            for start in range(0, table.num_rows, _WINDOW):
                yield table.slice(start, _WINDOW)


def infer_schema(block, before=None):
    """The schema of the lines of a block, together with that of other lines."""
    files, path = open_filesystem(block.path)
    with files.open_input_file(path) as file:
        return lines.infer_schema(file, block, before)


def finished(output):
    """The names of the output files that are complete, also of blocks without rows."""
    files, path = open_filesystem(output)
    infos = files.get_file_info(filesystems.FileSelector(path, allow_not_found=True))
    return {info.base_name.removeprefix(_EMPTY) for info in infos if info.is_file}


def write_block(output, name, tables):
    """Writes tables to the output file of a block, which appears whole or not at all. Returns its rows.

    An attempt that comes back late (Ray had given its node up) replaces the file by an equal one.
    """
    files, folder = open_filesystem(output)
    temporary = posixpath.join(folder, _TEMPORARY, f"{uuid.uuid4().hex}-{name}")
    files.create_dir(posixpath.dirname(temporary), recursive=True)
    rows, writer = 0, None
    with files.open_output_stream(temporary) as stream:
        for table in tables:
            if writer is None:
                writer = parquet.ParquetWriter(stream, table.schema)
            writer.write_table(table)
            rows += table.num_rows
        if writer is not None:
            writer.close()
    try:
        files.move(temporary, posixpath.join(folder, name if rows else _EMPTY + name))
    except FileNotFoundError:
        # Another run of the same output has finished all blocks and cleaned up.
        if name not in finished(output):
            raise
    return rows


def clean(output):
    """Deletes what interrupted attempts have left. Only when every block is finished."""
    files, folder = open_filesystem(output)
    path = posixpath.join(folder, _TEMPORARY)
    if files.get_file_info(path).type == filesystems.FileType.Directory:
        files.delete_dir(path)


def _with_path(uri, path, other):
    """The URI of another file of the same file system."""
    if "://" not in uri:
        return other
    base, question, options = uri.partition("?")
    base, path = base.rstrip("/"), path.rstrip("/")
    if not base.endswith(path):
        raise FilesError(f"{uri}: write the path of the URI as it is in the store: {path}")
    return base[: len(base) - len(path)] + other + question + options


def format_of(path):
    """The format of a file by its name, or None."""
    name = str(path).partition("?")[0].lower() if "://" in str(path) else str(path).lower()
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else None


def _is_hidden(path, folder):
    inside = path[len(folder) :].strip("/").split("/")
    return any(part.startswith(("_", ".")) for part in inside)
