"""Rows of datasets from files as they are published: JSON lines, JSON arrays, CSV, Parquet; gzipped or not."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import SuiteError

Row = dict[str, Any]

_KINDS = (".jsonl", ".json", ".csv", ".parquet")


def kind_of(path: Path) -> str:
    """The suffix that says the format: ".jsonl" of "test.jsonl.gz"."""
    name = path.name.removesuffix(".gz")
    for kind in _KINDS:
        if name.endswith(kind):
            return kind
    raise SuiteError(f"{path}: the name must end in {', '.join(_KINDS)}, or one of these and .gz.")


def files_of(path: Path) -> list[Path]:
    """The file, or those of a folder in the order of their names."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.removesuffix(".gz").endswith(_KINDS))
    if not files:
        raise SuiteError(f"{path} holds no file that ends in {', '.join(_KINDS)}.")
    return files


def digest(path: Path) -> str:
    """SHA-256 over the file, or over all files of the folder."""
    total = hashlib.sha256()
    for file in files_of(path):
        total.update(_bytes(file))
    return total.hexdigest()


def read_rows(path: Path, csv_columns: Sequence[str] = ()) -> list[Row]:
    """All rows of a file. `csv_columns`: names for a CSV file whose first line is data already."""
    kind = kind_of(path)
    data = _bytes(path)
    try:
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        if kind == ".parquet":
            rows = _parquet(data)
        elif kind == ".csv":
            rows = _csv(data.decode("utf-8-sig"), csv_columns)
        elif kind == ".json":
            rows = json.loads(data)
        else:
            rows = _json_lines(path, data.decode("utf-8-sig"))
    except (ValueError, EOFError, OSError) as error:
        raise SuiteError(f"{path} cannot be read as {kind[1:]}: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SuiteError(f"{path}: it must be a list of objects.")
    if not rows:
        raise SuiteError(f"{path} holds no rows.")
    return rows


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SuiteError(f"Cannot read {path}: {error.strerror}.") from error


def _json_lines(path: Path, text: str) -> list[Row]:
    rows = []
    # Not splitlines(): JSON strings may hold U+2028 as it is.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON ({error})") from error
    return rows


def _csv(text: str, columns: Sequence[str]) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), fieldnames=list(columns) or None)
    rows: list[Row] = []
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"line {reader.line_num} does not have {len(reader.fieldnames or [])} columns")
        rows.append(dict(row))
    return rows


def _parquet(data: bytes) -> list[Row]:
    import pyarrow.parquet

    rows: list[Row] = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    return rows
