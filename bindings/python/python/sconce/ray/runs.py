"""Whole runs on Ray Data: `embed`, `rerank`, `classify` and `generate`, with checkpoints."""

import base64
import json
import os
import posixpath
import time
from dataclasses import dataclass

import pyarrow
import ray
from pyarrow import fs as filesystems

from ..errors import InputError, SconceError
from ..progress import logger
from . import blocks, lines
from .placement import map_options
from .stages import Classify, Embed, Generate, Rerank, as_table

# Options that change where and how fast a run is, but not its results.
_NOT_PINNED = ("threads", "token", "cache_folder", "local_files_only", "requests")


@dataclass(frozen=True)
class Summary:
    """What a run has done: blocks that there are, those that were done before it, and rows that it wrote."""

    output: str
    blocks: int
    blocks_before: int
    rows: int
    seconds: float


def embed(data, model, **options):
    """Embeds the column `text` of a Dataset, or of Parquet and JSONL files (a path, or a list of them).

    Without `output`, a Dataset with the column `embedding` is returned, which Ray computes when it is
    read. With `output`, a folder or URI that all nodes share, a Parquet file is written for each
    block of the input, and a `Summary` is returned. If the run is interrupted, call it again: it does
    the blocks that are missing, so that each row is there once. `checkpoint` is the folder of its
    manifest, `OUTPUT/_sconce` by default; a Dataset is also written there once, because it may
    come out in another order next time.

    Further options are those of `Embed` and of `map_options`, and with `output` also `columns` (the
    columns of the input to keep), `rows_per_file` (of Parquet) and `bytes_per_file` (of JSONL).
    """
    return _run(Embed, data, model, options)


def rerank(data, model, **options):
    """Scores the column `document` for the column `query`: `embed` with the options of `Rerank`."""
    return _run(Rerank, data, model, options)


def classify(data, model, **options):
    """Labels the column `text`: `embed` with the options of `Classify`."""
    return _run(Classify, data, model, options)


def generate(data, model, **options):
    """Answers the column `prompt`: `embed` with the options of `Generate`."""
    return _run(Generate, data, model, options)


@dataclass(frozen=True)
class _Files:
    """How the files of a run are cut and written."""

    output: str
    checkpoint: str
    columns: list | None
    rows_per_file: int
    bytes_per_file: int


def _run(stage, data, model, options):
    names = ("device", "cpus", "gpus", "models", "batch_size")
    where = {name: options.pop(name) for name in names if name in options}
    if "device" in where:
        options["device"] = where["device"]
    # A folder, which would otherwise be looked for in the working folder of the actor.
    model = os.path.abspath(model) if os.path.exists(model) else model
    output = options.pop("output", None)
    if output is None:
        for name in ("checkpoint", "columns", "rows_per_file", "bytes_per_file"):
            if name in options:
                raise InputError(f"{name} needs an output: the folder to write to")
        return _dataset(data).map_batches(
            stage, fn_constructor_args=[model], fn_constructor_kwargs=options, **map_options(**where)
        )
    output = blocks.absolute(output)
    files = _Files(
        output=output,
        checkpoint=blocks.absolute(options.pop("checkpoint", None) or blocks.join(output, "_sconce")),
        columns=options.pop("columns", None),
        rows_per_file=_positive("rows_per_file", options.pop("rows_per_file", 50_000)),
        bytes_per_file=_positive("bytes_per_file", options.pop("bytes_per_file", 16 << 20)),
    )
    return _run_blocks(stage, data, model, options, files, where)


def _dataset(data):
    if isinstance(data, ray.data.Dataset):
        return data
    found = [uri for uri, *_ in blocks.list_inputs(data)]
    formats = {blocks.format_of(uri) for uri in found}
    if len(formats) > 1:
        raise InputError("the input has Parquet and JSONL files: give `output`, or one of both")
    if formats == {"parquet"}:
        return ray.data.read_parquet(found)
    return ray.data.read_json(found, lines=True)


def _run_blocks(stage, data, model, options, files, where):
    begun = time.monotonic()
    if isinstance(data, ray.data.Dataset):
        data = _keep_input(data, files.checkpoint)
    inputs = blocks.list_inputs(data)
    pinned = {name: value for name, value in options.items() if name not in _NOT_PINNED}
    manifest = {
        "format": 2,
        "stage": stage.__name__,
        "model": str(model),
        "options": pinned,
        "columns": files.columns,
        "rows_per_file": files.rows_per_file,
        "bytes_per_file": files.bytes_per_file,
        "inputs": [list(one) for one in inputs],
    }
    every = blocks.list_blocks(inputs, files.rows_per_file, files.bytes_per_file)
    schema = _pin(manifest, files, every)
    done = blocks.finished(files.output)
    missing = [block for block in every if block.name not in done]
    rows = 0
    if missing:
        actor = {
            "fn_constructor_args": [stage, model, options],
            "fn_constructor_kwargs": {"output": files.output, "columns": files.columns, "schema": schema},
        }
        rows = _compute(actor, missing, where)
    done = blocks.finished(files.output)
    lost = [block.name for block in every if block.name not in done]
    if lost:
        raise SconceError(f"{len(lost)} of {len(every)} blocks are not in {files.output}, first {lost[0]}: run it again")
    blocks.clean(files.output)
    before = len(every) - len(missing)
    return Summary(files.output, len(every), before, rows, time.monotonic() - begun)


def _compute(actor, missing, where):
    """Computes the missing blocks and returns the number of their rows."""
    arguments = map_options(**where) | actor
    arguments["fn_constructor_kwargs"]["window"] = arguments["batch_size"]
    pool = arguments["compute"]
    models = min(pool.max_size, len(missing))
    # The second block of an actor is read and written while the engine works at the first; two more
    # wait, because Ray Data starts actors (again) only where more wait than run.
    arguments["compute"] = ray.data.ActorPoolStrategy(
        min_size=1,
        max_size=models,
        initial_size=models,
        max_concurrent_calls_per_actor=2,
        max_tasks_in_flight_per_actor=4,
        enable_true_multi_threading=True,
    )
    arguments["batch_size"] = 1
    logger.info(f"{len(missing)} blocks on up to {models} models")
    items = [{"block": block.to_json()} for block in missing]
    results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(BlockStage, **arguments)
    return sum(int(batch["rows"].sum()) for batch in results.iter_batches(batch_size=None, batch_format="numpy"))


class BlockStage:
    """An actor that computes whole blocks: reads one, runs a stage, and writes its file."""

    def __init__(self, stage, model, options, *, output, columns, schema, window):
        self._stage = stage(model, **options)
        self._output, self._columns, self._schema, self._window = output, columns, schema, window

    def __call__(self, batch):
        """The number of rows of each block in a table of blocks."""
        every = [blocks.Block.from_json(text) for text in as_table(batch).column("block").to_pylist()]
        rows = [blocks.write_block(self._output, block.name, self._tables(block)) for block in every]
        return {"block": [block.name for block in every], "rows": rows}

    def _tables(self, block):
        for table in blocks.read_block(block, self._schema):
            for start in range(0, table.num_rows, self._window):
                part = table.slice(start, self._window)
                kept = part.column_names if self._columns is None else self._columns
                computed = self._stage(part)
                new = [name for name in computed.column_names if name not in part.column_names]
                yield computed.select([*kept, *new])


def _keep_input(data, checkpoint):
    """Writes a Dataset once, and returns the folder. A run that is repeated reads what was written."""
    files, folder = blocks.open_filesystem(checkpoint)
    mark = posixpath.join(folder, "input.complete")
    if files.get_file_info(mark).type == filesystems.FileType.NotFound:
        inside = posixpath.join(folder, "input")
        if files.get_file_info(inside).type != filesystems.FileType.NotFound:
            files.delete_dir(inside)
        files.create_dir(inside, recursive=True)
        data.write_parquet(inside, filesystem=files)
        _write_text(files, mark, "")
    return blocks.join(checkpoint, "input")


def _infer_schema(every):
    """The schema of all lines of the JSONL blocks, or None."""
    of_lines = [block for block in every if blocks.format_of(block.path) == "jsonl"]
    if not of_lines:
        return None
    infer, schema = ray.remote(blocks.infer_schema), pyarrow.schema([])
    for block, inferred in zip(of_lines, ray.get([infer.remote(block) for block in of_lines])):
        try:
            schema = lines.merge_schemas(schema, inferred)
        except pyarrow.ArrowException:
            # Names the line.
            schema = blocks.infer_schema(block, schema)
    return lines.without_nulls(schema)


def _pin(manifest, files, every):
    """Writes the manifest of a new run, or compares it with that of the run to go on with.

    Returns the schema of its JSONL files.
    """
    try:
        text = json.dumps(manifest, indent=1)
    except TypeError as error:
        raise InputError(f"an option cannot be kept in a manifest: {error}") from error
    system, folder = blocks.open_filesystem(files.checkpoint)
    path = posixpath.join(folder, "manifest.json")
    if system.get_file_info(path).type == filesystems.FileType.NotFound:
        if blocks.finished(files.output):
            raise InputError(f"{files.output} has files already, but {files.checkpoint} no manifest: give an empty folder")
        schema = _infer_schema(every)
        # As Arrow writes it, which keeps every type.
        written = None if schema is None else base64.b64encode(schema.serialize()).decode()
        system.create_dir(folder, recursive=True)
        _write_text(system, path, json.dumps(manifest | {"schema": written}, indent=1))
        return schema
    with system.open_input_stream(path) as stream:
        before = json.loads(stream.read())
    changed = [name for name in manifest if before.get(name) != json.loads(text)[name]]
    if changed:
        raise InputError(
            f"{files.output} was begun with other {', '.join(changed)} ({path} has them): repeat the run as it was, "
            "or give another output"
        )
    written = before["schema"]
    return written and pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(written)))


def _write_text(files, path, text):
    temporary = f"{path}.temporary"
    with files.open_output_stream(temporary) as stream:
        stream.write(text.encode())
    files.move(temporary, path)


def _positive(name, value):
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}; use a whole number above 0")
    return value
