"""Parquet files of other writers, for the tests of `sconce embed -f x.parquet`.

    pip install pyarrow==26.0.1 polars==2.1.0
    python tools/goldens/tables.py

Writes to crates/sconce/tests/tables: the same rows with every codec that Sconce reads, with
columns of many types, in two row groups; and rows.json, what they are as JSON.
"""

import base64
import datetime
import decimal
import json
import pathlib

import polars
import pyarrow
import pyarrow.parquet

OUT = pathlib.Path(__file__).parents[2] / "crates/sconce/tests/tables"
UTC = datetime.timezone.utc

TEXTS = [
    "A man is eating food.",
    'She said "yes", and left.',
    "two\nlines",
    "naïve über 世界",
    "",
    "tab\there",
    "the cat sat",
]


def rows():
    for i, text in enumerate(TEXTS):
        at = datetime.datetime(2024, 2, 29, 12, 30, i, 250_000, tzinfo=UTC)
        yield {
            "id": i,
            "text": text,
            "flag": None if i == 2 else i % 2 == 0,
            "small": i - 3,
            "unsigned": 2**63 + i,
            "score": i / 4,
            "day": at.date() - datetime.timedelta(days=20_000 * i),
            "at": at,
            "price": decimal.Decimal(i * 1001 - 2002).scaleb(-2),
            "blob": None if i == 3 else bytes([0, 255, i]),
            "tags": [None, [], ["a"], ["b", None, "c"]][i % 4],
            "vector": [[1.5, -2.0], [0.25]][: i % 3],
            "place": None if i == 5 else {"city": None if i == 4 else f"c{i}", "points": list(range(i % 3))},
            "counts": [("x", i), ("y", None)][: i % 3],
        }


SCHEMA = pyarrow.schema([
    pyarrow.field("id", pyarrow.int64(), nullable=False),
    ("text", pyarrow.string()),
    ("flag", pyarrow.bool_()),
    ("small", pyarrow.int8()),
    ("unsigned", pyarrow.uint64()),
    ("score", pyarrow.float32()),
    ("day", pyarrow.date32()),
    ("at", pyarrow.timestamp("us", tz="UTC")),
    ("price", pyarrow.decimal128(9, 2)),
    ("blob", pyarrow.binary()),
    ("tags", pyarrow.list_(pyarrow.string())),
    ("vector", pyarrow.list_(pyarrow.list_(pyarrow.float32()))),
    ("place", pyarrow.struct([("city", pyarrow.string()), ("points", pyarrow.list_(pyarrow.int32()))])),
    ("counts", pyarrow.map_(pyarrow.string(), pyarrow.int64())),
])


def as_json(row):
    """The row as Sconce writes it to JSONL."""
    row = dict(row)
    row["day"] = row["day"].isoformat()
    row["at"] = row["at"].strftime("%Y-%m-%dT%H:%M:%S.250Z")
    row["price"] = str(row["price"])
    row["blob"] = None if row["blob"] is None else base64.b64encode(row["blob"]).decode()
    row["counts"] = [{"key": key, "value": value} for key, value in row["counts"]]
    return row


def main():
    OUT.mkdir(exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    table = pyarrow.Table.from_pylist(list(rows()), SCHEMA)
    pyarrow.parquet.write_table(table, OUT / "types.parquet", row_group_size=4)
    small = table.select(["id", "text"])
    for codec in ["none", "gzip", "lz4"]:
        pyarrow.parquet.write_table(small, OUT / f"{codec}.parquet", compression=codec, store_schema=False)
    pyarrow.parquet.write_table(small, OUT / "v2.parquet", data_page_version="2.0", use_dictionary=False,
                                column_encoding={"text": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"})
    polars.DataFrame(small.to_pydict()).write_parquet(OUT / "polars.parquet", compression="zstd")
    text = "[\n" + ",\n".join(json.dumps(as_json(row), ensure_ascii=False) for row in rows()) + "\n]\n"
    (OUT / "rows.json").write_text(text)
    size = sum(file.stat().st_size for file in OUT.iterdir())
    print(f"{size} bytes")
    assert size < 20_000


main()
