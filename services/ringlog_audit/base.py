"""A comparison of the nodes' rows with the rows of the CDC log, over the public HTTP interface.

A node has validated the mutations up to its positions. The log contains the mutations that the audit has read. Each
partition is compared on every node whose positions have reached the end of these mutations. The audit skips partitions
with later writes, tables that log only keys, and writes to an earlier table of the same name.
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx

from ringlog.runtime.trust import current, name_of_node
from ringlog_audit.copies import LoggedPartition, answered, deviations
from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.rules.lateness import SKEW_US
from ringlog_audit.rules.streams import compose
from ringlog_audit.sources.topics import ANSWER_S, SILENCE_S, AuditError, AuditTopics, Decoder, latest
from ringlog_audit.writes.refusals import AuditRules
from ringlog_audit.writes.writes import BY_THE_JOB, AuditWrite, Position, Writes

SERVING = ("normal", "moving", "leaving")
POLL_S = 0.1
ELSEWHERE = 421
"""The HTTP status of a node's answer for a partition of other nodes."""
Name = tuple[str, bytes]
"""Full name of a table, and a composed partition key."""


class NodeSilent(Exception):
    """A node does not answer, or its answer is invalid."""


class NodeRows:
    """The client of one node."""

    def __init__(self, name: str, node: str, address: str) -> None:
        self.name = name
        self._meant = {"sni_hostname": name_of_node(node)}
        trust = current()
        self._http = httpx.Client(
            base_url=trust.url(address),
            headers=trust.headers(),
            verify=trust.client or False,
            timeout=ANSWER_S,
            trust_env=False,
        )

    def wait_for(self, ends: Mapping[int, int]) -> None:
        """Wait until the node has validated everything below these offsets. Raise NodeSilent if it stops."""
        last_progress, before = time.monotonic(), ""
        while True:
            status = self._asked("/v1/status").json()
            try:
                positions = {int(partition): int(end) for partition, end in status["positions"].items()}
                is_ready = bool(status["ready"])
            except (AttributeError, KeyError, TypeError, ValueError) as broken:
                raise NodeSilent(f"{self.name} does not report its positions: {broken!r}") from None
            if is_ready and all(positions.get(partition, 0) >= end for partition, end in ends.items()):
                return
            if (now := f"{is_ready} {sorted(positions.items())}") != before:
                last_progress, before = time.monotonic(), now
            elif time.monotonic() - last_progress > SILENCE_S:
                raise NodeSilent(f"{self.name} remains at {positions}; the mutations topic was read up to {dict(ends)}")
            time.sleep(POLL_S)

    def rows(self, table: str, key: bytes) -> Any:
        """Return the node's answer for a partition, or None if other nodes have it."""
        answer = self._asked(f"/v1/tables/{quote(table, safe='')}/rows", key)
        return None if answer.status_code == ELSEWHERE else answer.json()

    def _asked(self, path: str, key: bytes | None = None) -> httpx.Response:
        """Return the response to a GET, or to a POST of ``key``. A URL cannot contain every key."""
        method, headers = ("GET", {}) if key is None else ("POST", {"content-type": "application/octet-stream"})
        try:
            answer = self._http.request(method, path, content=key, headers=headers, extensions=self._meant)
            if answer.status_code != ELSEWHERE:
                answer.raise_for_status()
                answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise NodeSilent(f"{self.name} does not answer: {error!r}") from None
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


class BaseRows:
    """Some partitions of each table, rebuilt from the log. ``count``: partitions of each table, 0 for all."""

    def __init__(self, writes: Writes, rules: AuditRules, count: int, letters: Mapping[Position, str]) -> None:
        """Choose the partitions.

        ``letters``: the reasons of dead letters. Partitions with a write that only the job rejected are left out. Such
        a write has no row in the log, but the nodes have it.
        """
        self._rules = rules
        self._partitions: dict[int, tuple[Name, LoggedPartition]] = {}
        self.ends: dict[int, int] = {}
        for partition, offset in (*writes.by_position, *writes.skipped):
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)
        tables: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        apart = {
            writes.by_position[place].base
            for place in letters
            if letters[place] in BY_THE_JOB and place in writes.by_position
        }
        for write in writes.by_position.values():
            if not write.refusal and write.base not in apart and self._is_of_newest(write):
                tables[_table_of(write)].setdefault(write.base, compose(list(write.head[-1])))
        for name, keys in tables.items():
            newest = rules.history.newest(name)
            if newest is None or newest.keys_only:
                continue
            chosen = sorted(keys, key=lambda base: (zlib.crc32(keys[base]), keys[base]))
            for base in chosen[: count or None]:
                made = LoggedPartition(rules.history.columns_ever(name))
                self._partitions[base] = (name, keys[base]), made

    def _is_of_newest(self, write: AuditWrite) -> bool:
        """Return True if the write belongs to the table that has its name now."""
        newest = self._rules.history.newest(_table_of(write))
        return newest is not None and write.version is not None and newest.id == write.version.table.id

    def take(self, write: AuditWrite, decoded: Callable[[], Mapping[str, Any]]) -> None:
        """Add a log row of this write."""
        if write.refusal or write.base not in self._partitions:
            return
        _, partition = self._partitions[write.base]
        with suppress(ValueError):  # the row check reports values that do not fit their column
            partition.put(decoded())

    def check(self, topics: AuditTopics, decoder: Decoder, report: AuditReport) -> None:
        """Ask the nodes and add the check to the report. Raise AuditError if a topic cannot be read."""
        check = AuditCheck("base", "")
        report.checks.append(check)
        found: dict[Name, list[str]] = {name: [] for name, _ in self._partitions.values()}
        answers = dict.fromkeys(found, 0)
        for node in _nodes(topics, decoder):
            try:
                node.wait_for(self.ends)
                for name, partition in self._partitions.values():
                    differences = self._compared(node, name, partition)
                    answers[name] += differences is not None
                    found[name] += differences or ()
            except NodeSilent as silent:
                check.fail(str(silent))
            finally:
                node.close()
        moved = _written_since(topics, decoder, self.ends)
        for table, key in found.keys() - moved:
            for example in found[table, key]:
                check.fail(f"table {table}, key {key.hex()}, {example}")
            if not answers[table, key]:
                check.fail(f"table {table}, key {key.hex()}: no node returned its rows")
        compared, asked = len(found.keys() - moved), sum(answers.values())
        check.statement = f"the nodes have the rows that the log defines: {compared:,} partitions, {asked:,} answers"
        report.counts |= {"base_partitions": compared, "base_answers": asked}

    def _compared(self, node: NodeRows, name: Name, partition: LoggedPartition) -> list[str] | None:
        """Return the differences of a node's rows, or None if other nodes have the partition."""
        table = self._rules.history.newest(name[0])
        assert table is not None, "the table has this name"
        before = time.time_ns() // 1_000
        answer = node.rows(*name)
        if answer is None:
            return None
        try:
            rows = answered(answer, self._rules.history.columns_ever(name[0]), table.stored)
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            return [f"{node.name}: invalid rows: {broken!r}"]
        after = time.time_ns() // 1_000
        differing = deviations(partition, rows, table.logged_names, before - SKEW_US, after + SKEW_US)
        return [f"{node.name}: {one}" for one in differing]


def _table_of(write: AuditWrite) -> str:
    _, _, keyspace, table, *_ = write.head
    return f"{keyspace}.{table}"


def _nodes(topics: AuditTopics, decoder: Decoder) -> Iterator[NodeRows]:
    rows = [decoder.decode(value) for value in latest(topics, "nodes").values()]
    for row in sorted(rows, key=lambda row: str(row["name"])):
        if row["state"] in SERVING:
            yield NodeRows(row["name"], row["id"], row["address"])


def _written_since(topics: AuditTopics, decoder: Decoder, ends: Mapping[int, int]) -> set[Name]:
    """Return the partitions of the mutations at or after these offsets."""
    found = set()
    for message in topics.records("mutations", ends):
        try:
            write = decoder.decode(message.value() or b"")
            found.add((f"{write['keyspace']}.{write['table']}", compose(list(write["partition_key"]))))
        except (AuditError, KeyError, TypeError):
            continue  # not a write, or a write with a null in its key, which no node stores
    return found
