"""JSONL files: their lines, and the one schema that the lines of all files of a run have.

A block alone cannot tell the types of its columns: a field may be null in all of its lines, or have
whole numbers only. Files with types of their own could not be read as one table.
"""

import io
import json

import pyarrow

from ..errors import InputError

# The longest line of a JSONL file.
_MOST_LINE = 64 << 20
# What pyarrow raises for a value that has another type than its column.
_MISFITS = (pyarrow.ArrowException, OverflowError)


def read_table(file, block, schema):
    """The lines that begin in a block, as one table with the columns of `schema`."""
    rows = list(_rows(file, block))
    for at, row in rows:
        for name in row:
            if schema.get_field_index(name) < 0:
                raise _changed(block, at, f"the field `{name}`")
    columns = []
    for field in schema:
        try:
            columns.append(pyarrow.array([row.get(field.name) for _, row in rows], field.type))
        except _MISFITS:
            raise _misfit(rows, block, field) from None
    return pyarrow.table(columns, schema=schema)


def infer_schema(file, block, before=None):
    """The schema of the lines of a block, and of the lines before it, whose schema is `before`.

    Whole numbers and others together are floats. Columns without any value have the type null.
    """
    rows = list(_rows(file, block))
    before = pyarrow.schema([]) if before is None else before
    try:
        return merge_schemas(before, _schema_of([row for _, row in rows]))
    except _MISFITS as together:
        # Line by line, to name the one that differs.
        for at, row in rows:
            try:
                before = merge_schemas(before, _schema_of([row]))
            except _MISFITS as error:
                raise InputError(f"{block.path}, at byte {at}: the line is no row of the table: {error}") from None
        raise InputError(f"{block.path}, bytes {block.start} to {block.end}: {together}") from None


def merge_schemas(first, second):
    """One schema for the rows of both."""
    return pyarrow.unify_schemas([first, second], promote_options="permissive")


def without_nulls(schema):
    """The schema with texts in place of columns without any value."""
    return pyarrow.schema([field.with_type(_type_without_nulls(field.type)) for field in schema])


def _schema_of(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    # Unlike `infer_type`, an array has looked at every value.
    return pyarrow.schema([(name, pyarrow.array([row.get(name) for row in rows]).type) for name in names])


def _type_without_nulls(kind):
    if pyarrow.types.is_null(kind):
        return pyarrow.string()
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_type_without_nulls(kind.value_type))
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_type_without_nulls(field.type)) for field in kind])
    return kind


def _misfit(rows, block, field):
    """The error of the first row whose value does not fit a column."""
    for at, row in rows:
        try:
            pyarrow.array([row.get(field.name)], field.type)
        except _MISFITS as error:
            return _changed(block, at, f"the field `{field.name}`: {error}")
    return InputError(f"{block.path}: the field `{field.name}` is not of the type {field.type}")


def _changed(block, at, what):
    return InputError(
        f"{block.path}, at byte {at}: {what} does not fit the schema of all lines, which the manifest has; correct "
        "the line, or give another output if the file has changed"
    )


def _rows(file, block):
    """The objects of the lines that begin in a block, each with its position in the file."""
    at = max(block.start - 1, 0)
    file.seek(at)
    reader = io.BufferedReader(_Raw(file), 1 << 20)
    if block.start:
        # The line that the start lies in belongs to the block before.
        at += len(_line(reader, block))
    while at < block.end and (line := _line(reader, block)):
        if line.strip():
            yield at, _row(line, block, at)
        at += len(line)


def _line(reader, block):
    line = reader.readline(_MOST_LINE + 1)
    if len(line) > _MOST_LINE:
        raise InputError(f"{block.path}: a line is longer than {_MOST_LINE >> 20} MiB")
    return line


def _row(line, block, at):
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{block.path}, at byte {at}: the line is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise InputError(f"{block.path}, at byte {at}: the line is no JSON object")
    return row


class _Raw(io.RawIOBase):
    """A file of pyarrow as Python's buffers take it."""

    def __init__(self, file):
        self._file = file

    def readable(self):
        return True

    def readinto(self, buffer):
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
