"""The rows of a Delta table, read with Arrow only. The table's log names the Parquet files of the table.

This is a second, deliberately small reader of Spark's output. It reads tables with Delta's default features (reader
version 1: no deletion vectors, no renamed columns, checkpoints in one or several parts) and rejects others. Source: the
Delta transaction log protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from ringlog_audit.sources.topics import AuditError

READER_VERSION = 1
ROWS_PER_BATCH = 20_000


class DeltaFiles:
    """The files of the newest version of a table: path to partition values. Raises AuditError."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        self.files: dict[str, dict[str, str | None]] = {}
        first = self._checkpoint()
        version = first
        while (actions := self._json(version)) is not None:
            for action in actions:
                self._apply(action)
            version += 1
        if version == 0:
            raise AuditError(f"{root} is not a Delta table")

    def _checkpoint(self) -> int:
        """Load the newest checkpoint, if there is one. Return the version after it."""
        name = f"{self._root}/_delta_log/_last_checkpoint"
        if not self._exists(name):
            return 0
        version, parts = decode_last(self._read(name))
        names = [f"{version:020d}.checkpoint.parquet"]
        if parts:
            names = [f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
        for part in names:
            path = f"{self._root}/_delta_log/{part}"
            if not self._exists(path):
                raise AuditError(f"{self._root}: checkpoint {version} has an unsupported format")
            for action in _parquet(self._fs, path).read().to_pylist():
                self._apply(action)
        return version + 1

    def _json(self, version: int) -> list[dict[str, Any]] | None:
        name = f"{self._root}/_delta_log/{version:020d}.json"
        return decode_actions(self._read(name)) if self._exists(name) else None

    def _apply(self, action: dict[str, Any]) -> None:
        protocol, add, remove = action.get("protocol"), action.get("add"), action.get("remove")
        if protocol and protocol["minReaderVersion"] > READER_VERSION:
            raise AuditError(f"{self._root}: reader version {protocol['minReaderVersion']} is not supported")
        if add:
            self.files[add["path"]] = dict(add["partitionValues"])
        elif remove:
            self.files.pop(remove["path"], None)

    def rows(self, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield these columns of all rows. A partition column is yielded as text."""
        for path, values in sorted(self.files.items()):
            stored = [name for name in columns if name not in values]
            file = _parquet(self._fs, f"{self._root}/{unquote(path)}")
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=stored):
                found = {name: batch.column(name).to_pylist() for name in stored}
                found |= {name: [values[name]] * batch.num_rows for name in columns if name in values}
                yield from zip(*(found[name] for name in columns), strict=True)

    def scalars(self) -> Iterator[dict[str, Any]]:
        """Yield all columns of all rows as Arrow scalars, except partition columns."""
        for path in sorted(self.files):
            for batch in _parquet(self._fs, f"{self._root}/{unquote(path)}").iter_batches(ROWS_PER_BATCH):
                for number in range(batch.num_rows):
                    yield {name: batch.column(place)[number] for place, name in enumerate(batch.schema.names)}

    def types(self) -> dict[str, Any]:
        """Return the Arrow type of each column of any file."""
        found: dict[str, Any] = {}
        for path in sorted(self.files):
            for field in _parquet(self._fs, f"{self._root}/{unquote(path)}").schema_arrow:
                found.setdefault(field.name, field.type)
        return found

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).is_file)

    def _read(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.read())


def decode_actions(data: bytes) -> list[dict[str, Any]]:
    """Return the actions of a commit with the fields that this module uses. Raise AuditError if they are invalid."""
    try:
        found = [json.loads(line) for line in data.splitlines()]
        for action in found:
            if "protocol" in action:
                action["protocol"] = {"minReaderVersion": int(action["protocol"]["minReaderVersion"])}
            for name in ("add", "remove"):
                if not isinstance(action.get(name, {"path": ""})["path"], str):
                    raise ValueError("a path is not a string")
            if "add" in action and not all(
                isinstance(value, str | None) for value in dict(action["add"]["partitionValues"]).values()
            ):
                raise ValueError("a partition value is not a string")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AuditError(f"a commit is unreadable: {type(error).__name__}: {error}") from error
    return found


def decode_last(data: bytes) -> tuple[int, int | None]:
    """Return (version of the last checkpoint, number of parts or None for one). Raise AuditError if invalid."""
    try:
        found = json.loads(data)
        version, parts = found["version"], found.get("parts")
        if type(version) is not int or not (parts is None or type(parts) is int) or version < 0:
            raise ValueError("a value is not a number")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AuditError(f"_last_checkpoint is unreadable: {type(error).__name__}: {error}") from error
    return version, parts


def _parquet(fs: Any, path: str) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path, filesystem=fs, coerce_int96_timestamp_unit="us")


def open_lake(address: str) -> tuple[Any, str]:
    """Return (file system, path) of a folder or an address. Raise AuditError if it cannot be opened."""
    from pyarrow import fs

    try:
        if "://" in address:
            found, path = fs.FileSystem.from_uri(address)
            return found, path
        return fs.LocalFileSystem(), address
    except (ValueError, OSError) as error:
        raise AuditError(f"cannot open {address}: {error}") from error


def exists(system: Any, path: str) -> bool:
    """Return True for a file or folder."""
    from pyarrow.fs import FileType

    return bool(system.get_file_info(path).type != FileType.NotFound)


def tables_in(system: Any, root: str, suffix: str) -> dict[str, str]:
    """Return full name to path of the tables of all keyspaces of a lake."""
    from pyarrow.fs import FileSelector, FileType

    found = {}
    for keyspace in system.get_file_info(FileSelector(root, allow_not_found=True)):
        if keyspace.type == FileType.Directory and not keyspace.base_name.startswith("cdc-"):
            for table in system.get_file_info(FileSelector(keyspace.path)):
                if table.type == FileType.Directory and table.base_name.endswith(suffix):
                    found[f"{keyspace.base_name}.{table.base_name.removesuffix(suffix)}"] = table.path
    return found
