"""Files of a checkpoint: each has a version, and only files of the known version are read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ringlog_cdc.driver.recovery import FILE as RECOVERY
from ringlog_cdc.driver.recovery import FOLDER, Index
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, ImageFiles
from ringlog_cdc.lake.identity import FILE, FILLED, MADE, Made, forget_filled, identify, mark_filled
from ringlog_cdc.plan.plan import GENESIS
from ringlog_cdc.plan.store import CLAIM, PlanStore, claim_checkpoint, stored_claim
from ringlog_cdc.stored_files import VERSIONS, decode_file, encode_file
from tests.cdc.test_plan_store import part
from tests.refusals import raises_code

MARKS = {"driver.lock", "lock", "0.lock", "000000000000.done"}
"""Files without content."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint with one file of each kind, and the marks."""
    claim_checkpoint(tmp_path, "c", "w", 4, registered=False)
    store = PlanStore(tmp_path)
    store.put_context({"tables": {}})
    store.append(part(GENESIS, 0, 3))
    store.mark_done(store.head)
    files = ImageFiles(tmp_path / "images")
    files.begin()
    files.mark({0: 0})
    with closing(files.open(0)) as states:
        states.rewind(0, 0, owner=1)
    identity = identify(tmp_path, "c", "w", "/lake")
    assert identity is not None
    mark_filled(tmp_path, identity)
    Made(tmp_path, identity).note("ks.t", "an id")
    (tmp_path / FOLDER).mkdir()
    Index(tmp_path).finish()
    return tmp_path


def use_lake(checkpoint: Path) -> None:
    identity = identify(checkpoint, "c", "w", "/lake")
    assert identity is not None
    forget_filled(checkpoint, identity)
    Made(checkpoint, identity).note("ks.t", "another id")


def use_context(checkpoint: Path) -> None:
    (path,) = (checkpoint / "plans" / "contexts").iterdir()
    PlanStore(checkpoint).context(path.stem)


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "claim": (CLAIM, stored_claim),
    "context": ("plans/contexts/*.json", use_context),
    "images": ("images/0.db", lambda checkpoint: ImageFiles(checkpoint / "images").open(0).close()),
    "image_starts": (f"images/{BEGUN}", lambda checkpoint: ImageFiles(checkpoint / "images").begun()),
    "lake": (FILE, use_lake),
    "lake_filled": (FILLED, use_lake),
    "lake_table": (f"{MADE}/*.ks.t", use_lake),
    "plan": ("plans/000000000000.json", PlanStore),
    "recovery": (RECOVERY, Index),
}
"""Kind of a file to its name in a checkpoint, and a use of it."""


def with_version(path: Path, version: object) -> None:
    """Replace the version of a file. None removes it."""
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as base:
            base.execute(f"PRAGMA user_version = {version or 0}")
        return
    fields = json.loads(path.read_bytes()) | {"version": version}
    kept = {name: value for name, value in fields.items() if value is not None}
    path.write_bytes(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode() + b"\n")


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize(("version", "shown"), [(2, "version 2"), (None, "no version")])
def test_a_file_of_another_version_is_refused(checkpoint: Path, kind: str, version: object, shown: str) -> None:
    name, use = FILES[kind]
    (path,) = checkpoint.glob(name)
    with_version(path, version)
    before = path.read_bytes()
    with raises_code(CdcError, "checkpoint_version", match=f"{path} has {shown}, and this release reads version 1"):
        use(checkpoint)
    assert path.read_bytes() == before
    with_version(path, 1)
    use(checkpoint)


def test_every_file_of_a_checkpoint_has_a_version(checkpoint: Path) -> None:
    known = {path for name, _ in FILES.values() for path in checkpoint.glob(name)}
    found = {path for path in checkpoint.rglob("*") if path.is_file() and path.name not in MARKS}
    assert found == known
    assert all(not path.stat().st_size for path in checkpoint.rglob("*") if path.name in MARKS)


@pytest.mark.parametrize("version", ["true", "1.0", '"1"', "[1]", '"' + "\\u001b" * 99 + '"'])
def test_a_version_is_an_integer(version: str) -> None:
    data = encode_file("claim", {}).replace(b'"version":1', f'"version":{version}'.encode())
    with raises_code(CdcError, "checkpoint_version", match=r"^checkpoint_version: f has version [ -~]{1,20}, and"):
        decode_file("claim", data, "f", dict)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"version":1}',
        b'{"content":{},"file":"claim","version":1}',  # no end of line
        b'{"content":{},"file":"claim","more":1,"version":1}\n',
        b'{"content":[1],"file":"claim","version":1}\n',
        encode_file("plan", {}),
        encode_file("claim", {}).decode().encode("utf-16"),
    ],
)
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises(ChainBroken, match="f is unreadable"):
        decode_file("claim", data, "f", dict)


def test_the_form_of_a_file() -> None:
    data = b'{"content":{"a":[1],"b":"\\u00e9"},"file":"claim","version":1}\n'
    assert encode_file("claim", {"b": "é", "a": [1]}) == data
    assert decode_file("claim", data, "f", dict) == {"a": [1], "b": "é"}
