"""Three brokers on separate machines, each a broker and a controller, like a small production cluster.

They are reachable only from their network. ``Machines.inside`` moves the test's own clients there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata
from tests.system.machines import Machines

from ringlog.kernel.values import Value
from ringlog.log.kafka.topics import METADATA, admin_client, topic_name
from ringlog.stack import StackInfo, broker
from ringlog.stack.broker import new_cluster_id
from ringlog.stack.layout import StackLayout, StackSettings

NUMBERS = 1, 2, 3
PORT, CONTROLLER = 9092, 9093
QUICK = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "4000",
    "replica.socket.timeout.ms": "3000",
    "replica.fetch.wait.max.ms": "200",
    "controlled.shutdown.enable": "false",
}
"""Settings in addition to those of the stack's own broker."""


class Copies(Value):
    """The broker that leads the metadata topic (0: none), and the brokers that are in sync in all partitions."""

    leader: int
    in_sync: tuple[int, ...]


class ThreeBrokers:
    """Broker ``n`` on machine ``n``."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self._machines = machines
        self._layouts = {number: StackLayout(folder / f"b{number}") for number in NUMBERS}
        self._settings = StackSettings(new_cluster_id(), PORT, CONTROLLER, profile="quick", request=0)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ",".join(f"{machines.address(number)}:{PORT}" for number in NUMBERS)
        self.info = StackInfo(self.bootstrap, "redis://127.0.0.1:1/0", str(folder), 0, 0, 0, "quick", 2.0)
        self._admin = admin_client(self.bootstrap)
        self._format(*NUMBERS)
        for number in NUMBERS:
            self.start(number)

    def _format(self, *numbers: int) -> None:
        formatting = []
        for number in numbers:
            layout = self._layouts[number]
            layout.root.mkdir(parents=True)
            own = "".join(f"{name}={value}\n" for name, value in self._own(number).items())
            layout.own_properties.write_text(own, encoding="utf-8")
            broker.write_files(layout, self._settings)
            formatting.append(
                subprocess.Popen(broker.format_command(layout, self._settings), stdout=subprocess.DEVNULL)
            )
        assert {one.wait() for one in formatting} == {0}

    def start(self, number: int) -> None:
        """Start the broker and return immediately."""
        layout = self._layouts[number]
        with (layout.root / "log").open("ab") as log:
            command = [*self._machines.on(number), *broker.run_command(layout)]
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self, *numbers: int) -> None:
        """Send SIGKILL to all brokers before waiting for the first one."""
        for number in numbers:
            self._processes[number].kill()
        for number in numbers:
            self._processes[number].wait()

    def lose(self, *numbers: int) -> None:
        """Kill brokers and give their machines empty, formatted disks with the same numbers and cluster id."""
        self.kill(*numbers)
        for number in numbers:
            shutil.rmtree(self._layouts[number].root)
        self._format(*numbers)

    def close(self) -> None:
        self.kill(*self._processes)

    def are_up(self) -> bool:
        """Return True if all brokers report each other."""
        found = self._metadata()
        return found is not None and len(found.brokers) == len(NUMBERS)

    def copies(self, cluster: str) -> Copies | None:
        """Return the copies according to one broker; None without an answer."""
        name = topic_name(cluster, METADATA.suffix)
        found = self._metadata()
        if found is None or name not in found.topics or 0 not in found.topics[name].partitions:
            return None
        partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
        in_sync = set.intersection(*(set(one.isrs) for one in partitions))
        return Copies(max(found.topics[name].partitions[0].leader, 0), tuple(sorted(in_sync)))

    def _metadata(self) -> ClusterMetadata | None:
        try:
            return self._admin.list_topics(timeout=3)
        except KafkaException:
            return None

    def _own(self, number: int) -> dict[str, str]:
        address = self._machines.address(number)
        voters = (f"{one}@{self._machines.address(one)}:{CONTROLLER}" for one in NUMBERS)
        return {
            "node.id": str(number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"PLAINTEXT://{address}:{PORT},CONTROLLER://{address}:{CONTROLLER}",
            "advertised.listeners": f"PLAINTEXT://{address}:{PORT}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            **QUICK,
        }
