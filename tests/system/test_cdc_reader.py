"""Consumers of a real CDC topic: two generation switches, repetitions, kills, lost rows, invalid progress."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server
from tests.system.cdc_log import KEYS, CdcLog, Story, drop_all
from tests.system.cdc_world import until

from ringlog.client.cdc import CdcChange, CdcReader
from ringlog.client.cdc.errors import BadProgress, ProgressInUse, RowsLost, UnknownTable
from ringlog.client.cdc.stores import MemoryProgress
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.values import CdcOptions, Column, replace
from ringlog.wire.records import CdcRow, Cell

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
COMMIT_EVERY = 10

FOLLOWER = """
import sys
from ringlog.client.cdc import CdcReader
bootstrap, cluster, progress, until_end = sys.argv[1:]
with CdcReader(bootstrap, cluster, progress=progress, commit_every=10, until_end=until_end == "end") as reader:
    for change in reader:
        print(change.rows[0].key["number"], change.generation, flush=True)
"""


def numbers(changes: list[CdcChange]) -> list[int]:
    return [change.rows[0].key["number"] for change in changes]


def in_order(changes: list[CdcChange]) -> bool:
    """Check that generations follow each other and that the writes of each key keep their order."""
    generations = [change.generation for change in changes]
    keys: dict[str, list[int]] = {}
    for change in changes:
        keys.setdefault(change.rows[0].key["customer"], []).append(change.rows[0].key["number"])
    by_generation = {change.rows[0].key["number"]: change.generation for change in changes}
    per_key = all(found == sorted(found, key=lambda n: (by_generation[n], n)) for found in keys.values())
    return generations == sorted(generations) and per_key


@pytest.fixture
def story(log: CdcLog) -> Story:
    return Story(log)


def test_each_write_arrives_once_over_two_switches(story: Story, log: CdcLog) -> None:
    story.play()
    with CdcReader(log.world.bootstrap, log.world.cluster, tables=["shop.orders"], until_end=True) as reader:
        changes = list(reader)
        counts = reader.counts
        assert reader.generation == story.starts[2]
    assert sorted(numbers(changes)) == list(range(story.numbers))
    assert in_order(changes)
    assert {change.generation for change in changes} == set(story.starts)
    assert counts["repeated"] >= 60
    row = changes[0].rows[0]
    assert (row.operation, dict(row.values), row.deleted) == ("insert", {"amount": 7}, ("note",))
    assert list(row.key) == ["customer", "number"]


def test_a_reader_waits_only_for_the_seal(story: Story, log: CdcLog) -> None:
    story.join(0)
    story.write(story.rows(0, 10))
    story.join(1)
    story.write(story.rows(1, 10))
    log.publish()
    store = MemoryProgress()
    where = (log.world.bootstrap, log.world.cluster)
    with CdcReader(*where, progress=store, until_end=True) as reader:
        assert sorted(numbers(list(reader))) == list(range(10))
        left = reader.hidden_rows
    assert left is not None
    assert (left.generation, left.is_closed, left.writes) == (story.starts[0], False, 0)
    assert left.records >= 10
    told = tailed(log, "--json")
    assert len(told.stdout.splitlines()) == 10
    said = json.loads(told.stderr.splitlines()[-1])["not_shown"]
    assert (said["generation"], said["closed"], said["records_max"]) == (story.starts[0], False, left.records)
    assert [(one["partition"], one["offset"]) for one in said["from"]] == list(left.places)
    assert "is not sealed" in tailed(log).stderr
    log.close(story.starts[1])
    log.publish()
    with CdcReader(*where, progress=store, until_end=True) as reader:
        assert sorted(numbers(list(reader))) == list(range(10, 20))
        assert reader.hidden_rows is None
    told = tailed(log, "--json")
    assert (len(told.stdout.splitlines()), "not_shown" in told.stderr) == (20, False)
    with CdcReader(*where, progress=store, until_end=True) as reader:
        assert list(reader) == []


def test_a_killed_consumer_continues_after_its_last_commit(story: Story, log: CdcLog, tmp_path: Path) -> None:
    story.play()
    place = tmp_path / "place"
    first, second = tmp_path / "first", tmp_path / "second"
    with Follower(log, place, first, "on") as process:
        until(lambda: len(first.read_text().splitlines()) >= 3 * COMMIT_EVERY, "changes", lambda: alive(process))
        with pytest.raises(ProgressInUse):
            CdcReader(log.world.bootstrap, log.world.cluster, progress=place)
        process.send_signal(signal.SIGKILL)
        process.wait()
    handed = [int(line.split()[0]) for line in first.read_text().splitlines() if line.count(" ") == 1]
    with Follower(log, place, second, "end") as process:
        assert process.wait(120) == 0
    rest = [int(line.split()[0]) for line in second.read_text().splitlines()]
    done = story.numbers - len(rest)
    # The committed rows are a prefix of the delivered rows; exactly the other rows follow.
    assert done % COMMIT_EVERY == 0 or done == len(handed)
    assert len(handed) - COMMIT_EVERY <= done <= len(handed)
    assert sorted(handed[:done] + rest) == list(range(story.numbers))


def test_shares_have_every_write_once(story: Story, log: CdcLog) -> None:
    story.play()
    where = (log.world.bootstrap, log.world.cluster)
    parts = []
    for index in range(2):
        with CdcReader(*where, until_end=True, share=(index, 2)) as reader:
            parts.append(numbers(list(reader)))
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list(range(story.numbers))


def test_start_points(story: Story, log: CdcLog) -> None:
    story.play()
    where = (log.world.bootstrap, log.world.cluster)
    start = story.starts[1] + 1
    with CdcReader(*where, start=start, until_end=True) as reader:
        found = list(reader)
    assert sorted(numbers(found)) == sorted(
        number
        for row in story.written
        if row.timestamp >= start
        for number in [int.from_bytes(row.clustering_key[0] or b"")]
    )
    with CdcReader(*where, start="now", until_end=True) as reader:
        assert reader.generation == story.starts[2]
        assert list(reader) == []


def test_deleted_rows_are_an_error_or_counted(story: Story, log: CdcLog) -> None:
    story.play()
    where = (log.world.bootstrap, log.world.cluster)
    store = MemoryProgress()
    with CdcReader(*where, progress=store) as reader:
        next(iter(reader))
        reader.commit()
    drop_all(log)
    with pytest.raises(RowsLost) as lost:
        CdcReader(*where, progress=store)
    assert lost.value.code == "rows_lost"
    with CdcReader(*where, progress=store, lost="skip", until_end=True) as reader:
        assert list(reader) == []
        assert reader.lost_rows > 0


def test_a_position_of_another_reader_is_rejected(story: Story, log: CdcLog) -> None:
    story.join(0)
    log.publish()
    where = (log.world.bootstrap, log.world.cluster)
    with CdcReader(*where, tables=None, until_end=True) as reader:
        place = reader.place()
    for wrong in (place.replace(log.world.cluster, "other"), place[:-2], "7"):
        with pytest.raises(BadProgress):
            CdcReader(*where, progress=MemoryProgress(wrong))
    with pytest.raises(BadProgress, match="tables"):
        CdcReader(*where, tables=["shop.orders"], progress=MemoryProgress(place))
    for name in ("shop.nothing", "shop.quiet"):
        with pytest.raises(UnknownTable, match=name):
            CdcReader(*where, tables=[name])


def test_tail_prints_changes(story: Story, log: CdcLog) -> None:
    story.join(0)
    rows = story.rows(0, 1)
    log.publish()
    log.write([replace(row, mutation_id="01a3185c-5629-7cb4-80c6-5cc5ac6f75a9") for row in rows])
    (line,) = ringlog(log, "--json")
    assert json.loads(line) == {
        "table": "shop.orders",
        "table_id": log.world.state.tables["shop.orders"].id,
        "epoch": rows[0].epoch,
        "timestamp": rows[0].timestamp,
        "generation": story.starts[0],
        "stream_id": rows[0].stream_id.hex(),
        "time": json.loads(line)["time"],
        "mutation_id": "01a3185c-5629-7cb4-80c6-5cc5ac6f75a9",
        "partition": json.loads(line)["partition"],
        "offset": 0,
        "rows": [
            {
                "operation": "insert",
                "batch_seq_no": 0,
                "ttl": None,
                "key": {"customer": "customer-0", "number": 0},
                "values": {"amount": 7},
                "deleted": ["note"],
                "deleted_elements": {},
                "undecoded": {},
            }
        ],
    }
    (line,) = ringlog(log, "shop.orders")
    assert line.endswith('shop.orders  insert  customer="customer-0" number=0  set amount=7  delete note')
    (line,) = ringlog(log, "--format", "debezium")
    assert json.loads(line)["value"]["after"] == {"customer": "customer-0", "number": 0, "note": None, "amount": 7}
    (line,) = ringlog(log, "--format", "cloudevents")
    assert json.loads(line)["type"] == "ringlog.cdc.insert"


def test_apply_is_killed_and_the_copy_is_whole(story: Story, log: CdcLog, tmp_path: Path) -> None:
    """Each write takes effect once: a repeated delete would remove restored rows."""
    story.play()
    last = {number_of(row): row for row in story.written if row.generation == story.starts[2]}
    gone = sorted(last)[-5:]
    deletes = [log.row(f"customer-{number % KEYS}", number, last[number].timestamp + 1) for number in gone]
    log.write([replace(row, operation=3, cells=(), deleted=()) for row in deletes])
    path = tmp_path / "copy.sqlite"
    command = [sys.executable, "-m", "ringlog.cli", "cdc", "apply", "--to", str(path), "--commit-every", "10"]
    command += ["--bootstrap", log.world.bootstrap, "--cluster", log.world.cluster]
    with subprocess.Popen(command, env=environment()) as process:
        until(lambda: copied(path), "the first rows", lambda: alive(process))
        process.send_signal(signal.SIGKILL)
    done = subprocess.run(
        [*command, "--until-end", "--json"], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changes"] < story.numbers + len(gone)
    assert {row[1] for row in copied(path)} == set(range(story.numbers)) - set(gone)
    assert {row[2:] for row in copied(path)} == {(7, None)}


def test_apply_continues_over_unknown_columns_and_new_tables(story: Story, log: CdcLog, tmp_path: Path) -> None:
    story.join(0)
    world = log.world
    old = world.state.tables["shop.orders"].id
    (odd,) = story.rows(0, 1)
    story.write([replace(odd, cells=(Cell("nosuchcol", b"!"), Cell("amount", b"\1")), deleted=()), *story.rows(0, 3)])
    log.publish()
    path = tmp_path / "copy.sqlite"
    assert applied(log, path) == {"changes": 4, "undecoded": {"shop.orders": {"amount": 1, "nosuchcol": 1}}}
    assert {row[1:] for row in copied(path)} == {(0, None, None), *((number, 7, None) for number in (1, 2, 3))}

    world.apply(DropTable("shop", "orders"))
    types = {"customer": "text", "number": "bigint", "amount": "text", "Amount": "int"}
    columns = tuple(Column(name, kind) for name, kind in types.items())
    options = CdcOptions(enabled=True)
    world.apply(CreateTable("shop", "orders", str(uuid.uuid4()), columns, ("customer",), ("number",), options))
    cells = (Cell("amount", b"seven"), Cell("Amount", b"\0\0\0\7"))
    before = [replace(row, cells=cells[:1], deleted=()) for row in story.rows(0, 2)]
    world.apply(AlterTable("shop", "orders", (Column("added", "int"),)))
    after = [replace(row, cells=(*cells, Cell("added", b"\0\0\0\1")), deleted=()) for row in story.rows(0, 2)]
    # The change topics lag: the writer of these rows follows the log, and so do readers.
    late = [replace(row, epoch=odd.epoch) for row in story.rows(0, 2)]
    story.write([*before, *after, *late])
    assert applied(log, path) == {"changes": 6, "undecoded": {}}
    assert {row[1:] for row in copied(path)} == {
        *((number, "seven", None, None) for number in (4, 5)),
        *((number, "seven", 7, 1) for number in (6, 7)),
    }
    with closing(sqlite3.connect(path)) as found:
        gone = found.execute(f'SELECT number, amount FROM "shop.orders dropped {old}"').fetchall()
        assert sorted(gone) == [(0, None), (1, 7), (2, 7), (3, 7), (8, 7), (9, 7)]
        assert found.execute('SELECT "column", value FROM "cdc$undecoded" ORDER BY 1').fetchall() == [
            ("amount", b"\1"),
            ("nosuchcol", b"!"),
        ]
    with CdcReader(world.bootstrap, world.cluster, tables=["shop.orders"], until_end=True) as reader:
        ids = {change.rows[0].key["number"]: change.table_id for change in reader}
    assert {number for number, name in ids.items() if name == old} == {0, 1, 2, 3, 8, 9}


def test_rows_of_a_dropped_table_are_readable(story: Story, log: CdcLog, tmp_path: Path) -> None:
    story.join(0)
    story.write(story.rows(0, 5))
    log.world.apply(DropTable("shop", "orders"))
    log.publish()
    path = tmp_path / "copy.sqlite"
    assert applied(log, path, "--table", "shop.orders")["changes"] == 5
    assert {row[1] for row in copied(path)} == set(range(5))


def applied(log: CdcLog, path: Path, *options: str) -> Any:
    """Return the last summary of ``ringlog cdc apply``."""
    command = ["-m", "ringlog.cli", "cdc", "apply", "--to", str(path), "--until-end", "--json", *options]
    command += ["--bootstrap", log.world.bootstrap, "--cluster", log.world.cluster]
    done = fork_server.run(command, environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def number_of(row: CdcRow) -> int:
    return int.from_bytes(row.clustering_key[0] or b"")


def copied(path: Path) -> list[tuple[object, ...]]:
    """Return the current rows of the copy."""
    if not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=30)
    try:
        return connection.execute('SELECT * FROM "shop.orders"').fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


# --------------------------------------------------------------------------------------------------- processes


class Follower:
    """A consumer in its own process that writes its rows to a file."""

    def __init__(self, log: CdcLog, place: Path, output: Path, mode: str) -> None:
        self._command = [sys.executable, "-c", FOLLOWER, log.world.bootstrap, log.world.cluster, str(place), mode]
        self._output = output

    def __enter__(self) -> subprocess.Popen[bytes]:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(self._command, env=environment(), stdout=output)
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def alive(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None


def environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    return {**os.environ, "PYTHONPATH": paths}


def ringlog(log: CdcLog, *options: str) -> list[str]:
    """Return the lines of ``ringlog cdc tail`` up to the end."""
    return tailed(log, *options).stdout.splitlines()


def tailed(log: CdcLog, *options: str) -> subprocess.CompletedProcess[str]:
    """Return the same lines, and the standard error."""
    command = ["-m", "ringlog.cli", "cdc", "tail", "--until-end", *options]
    command += ["--bootstrap", log.world.bootstrap, "--cluster", log.world.cluster]
    done = fork_server.run(command, environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    return done
