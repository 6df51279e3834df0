"""Rejected acknowledgements: a node is shown from the first rejected record until a valid one, and a new master key
revokes earlier acceptance.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlog.agents.roles import acks as shell
from ringlog.agents.roles.acks import PlainThread, RejectedAcks
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.controller import Wait
from ringlog.protocol.coordinator.ack_book import ReadAcks, read_acks, update_acks
from ringlog.protocol.effects import run_steps
from ringlog.protocol.roles import ROLES
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import Trust
from ringlog.wire.acks import key_of, with_mac
from ringlog.wire.records import NodeAck, encode_node_ack
from tests.kernel.entries import applied, founded, node, uuid

MASTER = "a-master-of-many-letters"
STATE = applied(founded(), node(1), node(2))
ONE, TWO = uuid(1, space=2), uuid(2, space=2)


def encoded_ack(name: str) -> bytes:
    ack = NodeAck(STATE.cluster_id, ONE, name, STATE.epoch, STATE.epoch, (), 0, 0, (), STATE.state_id)
    return encode_node_ack(ack)


def test_a_node_is_shown_until_its_acknowledgement_is_accepted() -> None:
    found = RejectedAcks()
    for who, at in ((TWO, 5), (ONE, 6), (TWO, 7), (uuid(9, space=2), 8)):
        found.record_rejected(who, at, STATE.nodes)
    shown = found.shown(STATE.nodes)
    assert [(one.subject, one.command, one.code, one.since) for one in shown] == [
        (STATE.nodes[TWO].name, "NodeAck", "ack_not_believed", 5),
        (STATE.nodes[ONE].name, "NodeAck", "ack_not_believed", 6),
    ]
    assert "give the node its ack.key" in shown[0].detail
    found.record_accepted(TWO)
    assert [one.subject for one in found.shown(STATE.nodes)] == [STATE.nodes[ONE].name]
    found.clear()
    assert (found.shown(STATE.nodes), found.records) == ((), 4)


def test_invented_nodes_evict_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "NODES_MAX", 4)
    found = RejectedAcks()
    found.record_rejected(ONE, 1, STATE.nodes)
    for number in range(100):
        found.record_rejected(uuid(number, space=9), 2, STATE.nodes)
        assert len(found._since) <= 4
    found.record_rejected(TWO, 3, STATE.nodes)
    assert [one.since for one in found.shown(STATE.nodes)] == [1, 3]


def test_a_new_master_key_revokes_accepted_acks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running agent drops accepted acknowledgements without a further record, and it counts and names them in any
    role.
    """
    topic, trust = MemoryLog("c.acks"), [Trust()]
    monkeypatch.setattr(shell, "current", lambda: trust[0])
    monkeypatch.setattr(shell, "KafkaLog", lambda *_: topic)
    settings = ProcessSettings(bootstrap_servers="127.0.0.1:1", cluster="c", data_dir=tmp_path)
    thread = PlainThread(ROLES["rebalancer"], settings, lambda _: None, lambda _: None)
    thread.producer.close(0.1)
    thread.replica = _shows(thread.replica)

    def perform(effect: Any) -> Any:
        return thread._all_acks() if isinstance(effect, ReadAcks) else thread._new_acks(effect)

    topic.append([encoded_ack("999@thief"), with_mac(encoded_ack("1@own"), key_of(MASTER, ONE))])
    acks = run_steps(read_acks(), perform)
    assert acks.newest(STATE)[ONE].incarnation == "999@thief"
    assert run_steps(update_acks(acks, Wait.NOTHING), perform) is acks
    trust[0] = Trust(ack_masters=(MASTER,))
    thread.add_record(1, with_mac(encoded_ack("1@own"), key_of(MASTER, ONE)))
    acks = run_steps(update_acks(acks, Wait.NOTHING), perform)
    assert acks.newest(STATE)[ONE].incarnation == "1@own"
    assert [(one.name, one.value) for one in thread.figures()] == [("ringlog_acks_rejected", 1)]
    assert thread.refused() == (), "its valid acknowledgement came later"
    thread.add_record(2, encoded_ack("1000@thief"))
    assert run_steps(update_acks(acks, Wait.NOTHING), perform) is acks
    assert [one.subject for one in thread.refused()] == [STATE.nodes[ONE].name]


def _shows(replica: LogReplica) -> Any:
    """Return a replica that has folded ``STATE``."""
    return SimpleNamespace(state=STATE, halted=replica.halted)
