"""Nodes that are cut off from the broker and learn the log from peers. Some peers send wrong entries.

In every run of the profile, nodes ask their peers (``ringlog.node.protocol.peers``); in other profiles none does. Nodes
are cut off from the broker for seconds, or the broker is down for all, while the log may continue. A lie changes a
node's answers to peers, and nothing else::

    gap      an entry is missing               swapped   entries in another order
    foreign  an entry of another cluster       copied    the ids of an entry, around another command
    ahead    one more valid entry that the log does not have
"""

from __future__ import annotations

from typing import Any, Final

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, replace
from ringlog.runtime.draw import draw_uuid
from ringlog.wire.data import EntriesReply
from ringlog.wire.entries import author_entry, decode_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_state_id
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.story import Drawn, StorySetting

PROFILE: Final = "peers"
"""The profile that always has this story. Others never have it."""
LASTS: Micros = 9 * SECOND
LIES: Final = ("gap", "swapped", "foreign", "copied", "ahead")


def draw_peer_logs(setting: StorySetting) -> list[Drawn]:
    """Draw nodes that are cut off, and lies."""
    chance, nodes = setting.chance("hearsay"), setting.nodes
    drawn: list[Drawn] = [(0, "ask_peers", ())]

    def add(low: int, high: int, what: str, *arguments: Any) -> None:
        drawn.append((chance.between(low, high) * MS, what, arguments))

    for name in nodes:
        if chance.happens(0.7):
            add(100, 1_500, "cut_off", name, chance.between(3_500, 7_000))
        if chance.happens(0.4):
            add(0, 1_000, "lies", name, chance.pick(LIES))
    if chance.happens(0.2):
        add(500, 3_000, "broker_down", chance.between(1_000, 3_000))
    for _ in range(chance.between(8, 14)):
        add(100, 7_000, "command", chance.pick(["Noop", "CreateKeyspace", "DropKeyspace"]), "validator")
    if chance.happens(0.4):
        add(500, 5_000, "crash", chance.pick(nodes), chance.between(50, 800))
    return drawn


def false_answer(reply: EntriesReply, lie: str, state: ClusterState, chance: Chance) -> EntriesReply:
    """Return a node's false answer. ``state``: its own."""
    entries = list(reply.entries)
    if lie == "ahead" and not reply.refused and not reply.snapshot:
        last = decode_entry(entries[-1]) if entries else None
        before = last.state_id if isinstance(last, Entry) else state.state_id
        if before != state.state_id:
            return reply
        made = new_state_id(before, state.time, chance.take(ENTROPY_BYTES))
        header = state.cluster_id, made, before, draw_uuid(chance), state.epoch, "liar", state.time
        entries.append(author_entry(*header, Noop()).data)
        return replace(reply, epoch=reply.epoch + 1, state_id=made, entries=tuple(entries))
    if not entries or lie == "ahead":
        return reply
    number = chance.below(len(entries))
    found = decode_entry(entries[number])
    assert isinstance(found, Entry), "an applied record is an entry"
    match lie:
        case "gap":
            del entries[number]
        case "swapped":
            entries = entries[::-1] if len(entries) > 1 else entries * 2
        case "foreign" | "copied":
            cluster = draw_uuid(chance) if lie == "foreign" else found.cluster_id
            ids = cluster, found.state_id, found.prev_state_id, found.request_id
            entries[number] = author_entry(*ids, found.since_epoch, "liar", found.at, Noop()).data
    return replace(reply, entries=tuple(entries))
