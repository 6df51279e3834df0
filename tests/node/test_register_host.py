"""Registers with a disk and threads: they match a plain model over restarts and while epochs move ranges away."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_OLD
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.registers.journal import recover
from ringlog.node.registers.registers import Reply
from ringlog.protocol.nodes.errors import NodeFailed, RegistersForeign
from ringlog.wire.data import NOT_MEMBER, Cells, Key, ReadRequest, RegisterCell, WriteRequest
from tests.kernel.entries import applied
from tests.kernel.operations.driver import report_of
from tests.node.data_world import until
from tests.node.world import begin_join, cluster, name_of, step

NODE = name_of(1)
KEYS = [Key("shop", token, b"k%d" % token) for token in (10, 100, 900)]
CELLS = st.builds(RegisterCell, st.integers(0, 4), st.binary(max_size=3), st.booleans())
STEPS = st.lists(st.tuples(st.sampled_from(KEYS), CELLS) | st.sampled_from(["restart", "crash"]), max_size=12)
ALONE = cluster((1_000,), factor=1)


def journey() -> list[ClusterState]:
    """Return the states of a join that moves ``KEYS`` away from node 1."""
    state = cluster((1_000,), (2_000,), factor=1)
    log = [state]
    state, operation = begin_join(state, 9, (950,))
    while state.operations[operation].stage != FINISHED:
        log.append(state)
        found = state.operations[operation]
        state = step(state, operation, (report_of(found),) if found.stage == WRITE_BOTH_READ_OLD else ())
    return [*log, state]


def copied(host: RegisterHost, folder: Path, to: Path) -> Path:
    """Copy the folder as a crash would leave it. Retry if files change during the copy."""
    while True:
        compaction = host._journal._compaction
        if compaction is not None:
            compaction.join()
        with suppress(shutil.Error):
            shutil.copytree(folder, to)
            if host._journal._compaction is compaction:
                return to
        shutil.rmtree(to)


@settings(max_examples=12)
@given(STEPS)
def test_acknowledged_writes_survive_any_restart(steps: list[tuple[Key, RegisterCell] | str]) -> None:
    model: dict[Key, RegisterCell] = {}
    with TemporaryDirectory() as name:
        folder, starts = Path(name) / "cells", 1
        host = RegisterHost(NODE, folder, compact_bytes=300)
        host.adopt(ALONE)
        for action in steps:
            if isinstance(action, tuple):
                key, cell = action
                answer = host.answered(WriteRequest("", NODE, ALONE.epoch, "", key, cell))
                assert isinstance(answer, Reply)
                assert (answer.epoch, answer.refused) == (ALONE.epoch, "")
                model[key] = max(model.get(key, cell), cell, key=lambda c: (c.timestamp, c.deleted, c.value))
                continue
            if action == "crash":
                left = copied(host, folder, Path(name) / f"left-{starts}")
                host.close()
                folder = left
            else:
                host.close()
            host, starts = RegisterHost(NODE, folder, compact_bytes=300), starts + 1
            host.adopt(ALONE)
        assert host.start == starts
        for key in KEYS:
            found = host.answered(ReadRequest("", NODE, ALONE.epoch, "", key, False))
            assert isinstance(found, Reply)
            assert found.cell == model.get(key)
        host.close()


def test_concurrent_writes_leave_no_cells_in_moved_ranges(tmp_path: Path) -> None:
    host = RegisterHost(NODE, tmp_path / "cells")
    log = journey()
    host.adopt(log[0])
    said: list[str] = []
    over = threading.Event()

    def write(number: int) -> None:
        timestamp = 0
        while not over.is_set():
            timestamp += 1
            answer = host.answered(
                WriteRequest("", NODE, log[0].epoch, "", KEYS[number % 3], RegisterCell(timestamp, b"v"))
            )
            assert isinstance(answer, Reply)
            said.append(answer.refused)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: "" in said, "a write under the first epoch")
    for state in log[1:]:
        host.adopt(state)
        assert recover_copy(tmp_path)[0] >= state.epoch, "an epoch is durable before a request uses it"
    over.set()
    for thread in threads:
        thread.join()
    assert set(said) <= {"", NOT_MEMBER}
    assert "" in said
    assert not host.value.durable.cells
    assert not host.value.pending
    assert host.acknowledgeable() == log[-1].epoch
    host.close()
    image = recover(tmp_path / "cells")[0]
    assert (image.epoch, dict(image.cells)) == (log[-1].epoch, {})


def test_a_page_of_a_dropped_keyspace_is_refused(tmp_path: Path) -> None:
    """A request that checked the keyspace before the epoch was adopted is refused afterwards."""
    state = cluster((1_000,), (2_000,), factor=1)
    state = applied(state, CreateKeyspace("other", state.keyspaces["shop"].replication))
    state, operation = begin_join(state, 9, (950,))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    host = RegisterHost(name_of(9), tmp_path / "cells")
    host.adopt(state)
    (fetch,) = host.value.fetching
    made = tuple((name, keyspace.made) for name, keyspace in state.keyspaces.items())

    def page(key: Key) -> Cells:
        return Cells(((key, RegisterCell(1, b"v")),), made)

    host.adopt(applied(state, DropTable("shop", "orders"), DropKeyspace("shop")))
    assert not host.receive_page(fetch, page(KEYS[0]))
    assert not host.receive_page(fetch, page(Key("other", 2_000, b"k"))), (
        "the page does not belong to the ranges of the stream"
    )
    assert host.receive_page(fetch, page(Key("other", 900, b"k")))
    assert {key.keyspace for key in host.value.durable.cells} == {"other"}
    host.close()


def recover_copy(folder: Path) -> tuple[int, int]:
    """Return (epoch, cells) of the disk as a crash would leave it now."""
    with TemporaryDirectory() as name:
        image = recover(Path(shutil.copytree(folder / "cells", Path(name) / "cells")))[0]
        return image.epoch, len(image.cells)


def test_a_disk_failure_is_reported_to_writers_and_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = RegisterHost(NODE, tmp_path)
    host.adopt(ALONE)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ringlog.node.registers.journal.os.fdatasync", full)
    with pytest.raises(NodeFailed, match="No space left"):
        host.answered(WriteRequest("", NODE, ALONE.epoch, "", KEYS[0], RegisterCell(1, b"v")))
    with pytest.raises(NodeFailed, match="No space left"):
        host.check()
    assert host.acknowledgeable() <= ALONE.epoch
    host.close()


def test_registers_of_another_node_are_refused(tmp_path: Path) -> None:
    """An image that covers the earlier journals is refused too."""
    for compact_bytes in (300, 16 * 1024 * 1024):
        folder = tmp_path / f"cells-{compact_bytes}"
        host = RegisterHost(NODE, folder, compact_bytes=compact_bytes)
        host.adopt(ALONE)
        for number in range(20):
            host.answered(WriteRequest("", NODE, ALONE.epoch, "", KEYS[0], RegisterCell(number, b"v" * 100)))
        host.close()
        with pytest.raises(RegistersForeign, match=f"of node {NODE}, this node is {name_of(9)}"):
            RegisterHost(name_of(9), folder)
        again = RegisterHost(NODE, folder)
        assert len(again.value.durable.cells) == 1
        again.close()
