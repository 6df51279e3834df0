"""The status view of a real node's parts, on a log in memory, without a broker for the mutations."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from structlog.testing import capture_logs

from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.topology.nodes import UnregisterNode
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.reports.monitor import NodeWatch
from ringlog.node.rows.disk_rows import ROWS, DiskRows
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_service import DataService
from ringlog.node.streams.mutation_tail import MutationsTail
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.monitoring.scrape import exposition
from tests.kernel.entries import node as register
from tests.node.data_world import until

NOW = 1_700_000_000_000_000


def test_the_status_shows_the_values_of_the_parts(tmp_path: Path) -> None:
    log = MemoryLog()
    replica = LogReplica(log)
    options = NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 1, tmp_path / "n1")
    failure: list[NodeFailed] = []
    stopping = threading.Event()
    with ExitStack() as open_:
        folder = NodeFolder(options)
        open_.callback(folder.close)
        open_.callback(folder.socket.close)
        rows = DiskRows(options.folder / ROWS, folder.node)
        open_.callback(rows.close)
        row_replica = RowReplica(folder.node, rows)
        data = DataService(folder, options, row_replica, ManualClock(NOW), replica, lambda: None, stopping)
        open_.callback(data.stop)
        tail = MutationsTail("127.0.0.1:1", "c")
        open_.callback(tail.close)
        watch = NodeWatch(
            options, folder, row_replica, data, replica, tail, Counter(kept=2), ManualClock(NOW),
            lambda: failure[0] if failure else None, stopping.is_set,
        )  # fmt: skip
        assert watch.labels == {"node": "n1"}
        assert (watch.health()[0].state, watch.health()[1]) == ("starting", NOW)

        with replica:
            found(log, replica, "c")
            author = DirectAuthor(log, replica, "tester")
            author.submit(register(1, id=folder.node, name="n1"))
            row_replica.adopt(replica.read_barrier())
            data.start(threading.Event())
            until(lambda: data.status().epoch == replica.state.epoch, "the registers to adopt the epoch")
            assert watch.health()[0].state == "catching_up"
            row_replica.caught_up = True
            row_replica.positions.update({0: 3})
            health, _ = watch.health()
            assert (health.state, health.is_ready, health.behind) == ("ready", True, 0)
            shown = {(one.name, *one.labels): one.value for one in watch.samples()}
            assert shown[("ringlog_node_rows_epoch",)] == shown[("ringlog_node_registers_epoch",)] == 2
            assert shown[("ringlog_node_known_epoch",)] == 2
            assert shown[("ringlog_node_writes", "kept")] == 2
            size = shown[("ringlog_node_disk_bytes", "rows")]
            assert isinstance(size, int)
            assert size >= (options.folder / ROWS).stat().st_size > 0
            assert ("ringlog_node_copy_epoch",) not in shown, "the node is not a member"
            assert ("ringlog_node_mutations_behind_records",) not in shown, "the broker has not answered yet"
            assert b'ringlog_node_ready{node="n1"} 1.0' in exposition(watch.samples(), watch.labels).splitlines()

            replica.subscribe(watch.folded)
            with capture_logs() as lines:
                author.submit(UnregisterNode(folder.node))
                author.submit(register(2))
                until(lambda: len(lines) > 0, "the node to log that it has left")
            (line,) = lines
            assert (line["event"], line["node"], line["epoch"]) == ("left_cluster", "n1", 3)
            assert line["next_step"] == "the process can be stopped"

            stopping.set()
            assert watch.health()[0].state == "stopping"
            failure.append(NodeFailed("the disk is full"))
            assert watch.health()[0].why == "the disk is full"
