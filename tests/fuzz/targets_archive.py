"""Fuzz targets for the sources of log recovery: archives, copies of log replicas, states composed by operators."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

from ringlog.kernel.encoding.decoder import StateUndecodable, decode_part
from ringlog.log.archive.archive import Archive, all_records, extend_archive
from ringlog.log.archive.copies import end_of
from ringlog.log.errors import LogError
from ringlog.log.folding import BEGINNING
from ringlog.node.log.log_copy import COPY, copy_of_member
from ringlog.node.log.member_copy import open_copy
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import check_export, write_export
from ringlog.operator.history.log_past import Past
from ringlog.operator.history.state_json import composed, exported
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target
from tests.log.test_snapshots import Cluster


@cache
def _segment() -> tuple[str, bytes]:
    """Return the name and content of a valid archive segment."""
    cluster = Cluster()
    cluster.live(Random(3), 10)
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        extend_archive(Archive(Path(folder)), all_records(cluster.log, None, 0), BEGINNING, cluster.log.identity())
        (path,) = Path(folder).glob("*.segment")
        return path.name, path.read_bytes()


def archive_segment(data: bytes) -> None:
    """Read an archive with only this segment."""
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        (Path(folder) / _segment()[0]).write_bytes(data)
        archive = Archive(Path(folder))
        for record in archive.records(archive.segments()):
            assert record.offset >= 0


@cache
def _copied() -> tuple[Cluster, bytes]:
    """Return a cluster and a log replica's copy of its log."""
    cluster = Cluster()
    cluster.live(Random(3), 10)
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        path = Path(folder) / COPY
        copy = open_copy(path, cluster.log, cluster.start_finder())
        copy.append(cluster.log.read(0, 0, 100)[0])
        copy.close()
        return cluster, path.read_bytes()


def member_copy(data: bytes) -> None:
    """Apply the valid start of a log replica's copy."""
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        (Path(folder) / COPY).write_bytes(data)
        end_of(copy_of_member(Path(folder)))


def composed_state(data: bytes) -> None:
    """Decode each section of a state edited by an operator, or reject it."""
    for part in composed(data, _copied()[0].state):
        with suppress(StateUndecodable):
            decode_part(part.name, part.data)


def export(data: bytes) -> None:
    """Check a file of ``ringlog log export``."""
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        path = Path(folder) / "trail.jsonl"
        path.write_bytes(data)
        check_export(path, {})


@cache
def _exports() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory(prefix="ringlog-fuzz-") as folder:
        path = Path(folder) / "trail.jsonl"
        write_export(path, Past(_copied()[0].log.read(0, 0, 5)[0]))
        whole = path.read_bytes()
    return (whole, whole.splitlines()[0])


TARGETS = (
    Target("exports", ("operator.history.log_lines.check_export",), export, (Refused,), _exports, of_json),
    Target("archives", ("log.archive.archive.Archive._head",), archive_segment, (LogError,), lambda: (_segment()[1],)),
    Target("member_copies", (), member_copy, (LogError,), lambda: (_copied()[1],)),
    Target(
        "composed_states",
        ("operator.history.state_json.composed",),
        composed_state,
        (Refused,),
        lambda: (json.dumps(exported(_copied()[0].state)).encode(),),
        of_json,
    ),
)
