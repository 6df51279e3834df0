"""A Kafka process that is broker and controller (KRaft combined mode), and its settings.

Reasons for the settings:

- The voter is configured statically by address. So a changed port changes only the configuration, not the data.

- The session time-out is short. After a kill, the controller refuses the restarted broker until the old session ends.

- Internal topics have few partitions. Fifty have no benefit on one machine and cost seconds at every start.

- The broker has fewer threads than Kafka's default, because it shares the machine with its clients. Here the hand-over
  of a request between threads costs more than the work on it.

The file ``broker.properties`` in the stack's folder contains the user's own settings (``name=value`` lines, ``#`` for
comments), such as a second listener for a proxy or a smaller segment size. They override the settings made here. The
listeners made here require authentication (``log_in``).
"""

from __future__ import annotations

import base64
import os
import secrets

from ringlog.files import private_folder, write_private
from ringlog.stack import java
from ringlog.stack.artifacts import jars
from ringlog.stack.errors import StackError
from ringlog.stack.java import BROKER, WANTED, find_java
from ringlog.stack.layout import StackLayout, StackSettings
from ringlog.stack.log_in import listener_properties
from ringlog.stack.processes import HOST

HEAP_MIB = 512
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
OWN_BYTES_MAX = 1024 * 1024
INTERNAL_PARTITIONS = 4
SESSION_TIMEOUT_MS = 3000
HEARTBEAT_MS = 500

_LOG4J = """\
Configuration:
  status: error
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "%d{ISO8601} %p %m (%c)%n"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        ref: out
    Logger:
      - name: kafka.request.logger
        level: WARN
      - name: org.apache.kafka.clients
        level: WARN
"""


def new_cluster_id() -> str:
    """Return a Kafka cluster id: 16 random bytes in unpadded URL-safe base 64 that do not start with a dash."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def properties(layout: StackLayout, settings: StackSettings) -> dict[str, str]:
    """Return the broker's settings without those of its listeners."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{settings.controller_port}",
        "log.dirs": str(layout.broker / "data"),
        "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "broker.heartbeat.interval.ms": str(HEARTBEAT_MS),
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": str(INTERNAL_PARTITIONS),
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        **threads(len(os.sched_getaffinity(0))),
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }


def threads(processors: int) -> dict[str, str]:
    """Return the number of network and I/O threads. From 12 and 16 processors on, these are Kafka's defaults."""
    network, io = min(max(processors // 4, 1), 3), min(max(processors // 2, 1), 8)
    return {"num.network.threads": str(network), "num.io.threads": str(io)}


def own_properties(layout: StackLayout) -> dict[str, str]:
    """Return the user's own settings, empty without the file. Raises StackError ``bad_settings`` if it is invalid."""
    try:
        with layout.own_properties.open("rb") as file:
            data = file.read(OWN_BYTES_MAX + 1)
        text = data.decode()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise StackError("bad_settings", f"{layout.own_properties}: not UTF-8 text.") from error
    if len(data) > OWN_BYTES_MAX:
        raise StackError("bad_settings", f"{layout.own_properties} has more than {OWN_BYTES_MAX:,} bytes.")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = line.strip().partition("=")
        if name and not name.startswith("#"):
            if not equals:
                raise StackError("bad_settings", f"{layout.own_properties}, line {number}: not a name=value line.")
            found[name.strip()] = value.strip()
    return found


def write_files(layout: StackLayout, settings: StackSettings) -> None:
    """Write the broker's settings and its logging configuration to the data folder."""
    private_folder(layout.broker, ours=True)
    found = {**properties(layout, settings), **listener_properties(settings), **own_properties(layout)}
    write_private(layout.server_properties, "".join(f"{key}={value}\n" for key, value in found.items()))
    (layout.broker / "log4j2.yaml").write_text(_LOG4J, encoding="utf-8")


def is_formatted(layout: StackLayout) -> bool:
    """Return whether the storage is formatted. The checked file is the last one that formatting writes."""
    return (layout.broker / "data" / "meta.properties").is_file()


def format_command(layout: StackLayout, settings: StackSettings) -> list[str]:
    """Return the command that formats empty storage for this cluster id. Safe on partially formatted storage."""
    tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", settings.kafka_cluster_id]
    return [
        *_java(layout, heap_mib=128, class_options=java.archive_options(BROKER)),
        *tool,
        "-c",
        str(layout.server_properties),
    ]


def run_command(layout: StackLayout) -> list[str]:
    """Return the command that runs the broker in the foreground."""
    return [
        *_java(layout, heap_mib=HEAP_MIB, class_options=java.options(BROKER)),
        "kafka.Kafka",
        str(layout.server_properties),
    ]


def _java(layout: StackLayout, *, heap_mib: int, class_options: tuple[str, ...]) -> list[str]:
    java = find_java()
    if java is None:
        raise StackError("java_missing", f"{WANTED} is not in JAVA_HOME or PATH.", "Run: ringlog stack setup")
    class_path = ":".join(str(path) for path in jars("kafka"))
    return [
        java.path,
        f"-Xmx{heap_mib}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *class_options,
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={layout.broker / 'log4j2.yaml'}",
        "-cp",
        class_path,
    ]
