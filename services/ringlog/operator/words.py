"""Views of operations in words, a line each, for display to people."""

from __future__ import annotations

from typing import Any

from ringlog.operator.replication import replication_words
from ringlog.operator.shown import when
from ringlog.wire.records import RefusedProposal

Json = dict[str, Any]


def subject(view: Json) -> str:
    """Whose operation it is."""
    if "requester" in view:
        return f"the cluster, for {view['requester']}"
    if view.get("keyspace"):
        return f"keyspace {view['keyspace']}, to {replication_words(view['replication'])}"
    return str(view["node"]) + (f" for {view['replaced']}" if view.get("replaced") else "")


def described(view: Json) -> list[str]:
    """An operation in words, a line each."""
    lines = [f"{view['id']} of {subject(view)}: {view['stage']}"]
    lines += [f"  {when(mark['at'])}  epoch {mark['epoch']}  {mark['stage']}" for mark in view["stages"]]
    if view.get("ignored"):
        lines.append(f"goes on without {', '.join(view['ignored'])}")
    lines += [f"{one['node']} streamed {one['rows']} rows" for one in view["streamed"]]
    if view.get("relaxed"):
        lines.append(f"left without a quorum that knew it (setting gate_prepared): {', '.join(view['relaxed'])}")
    for one in view.get("failures", ()):
        who = f"{one['node']} " if one["node"] else ""
        often = f" after {one['tries']} tries" if one["tries"] else ""
        lines.append(f"{who}failed at epoch {one['epoch']}{often}: {one['reason']}")
    lines += [f"tried again from epoch {one['epoch']}: {one['reason']}" for one in view.get("retries", ())]
    if view["reason"]:
        lines.append(view["reason"])
    lines += [refused_words(RefusedProposal(**one)) for one in view.get("refused", ())]
    return [*lines, *(wait_lines(view) if "waits_for" in view else ())]


def wait_lines(view: Json) -> list[str]:
    """For whom an operation in flight waits, since when, and what can be done, a line each."""
    since = when(view["stages"][-1]["at"])
    return [f"waits for {view['waits_for']}", f"in this stage since {since}", *view["ways_out"]]


def pause_words(view: Json) -> str:
    """What operators hold up."""
    why = f": {view['reason']}" if view["reason"] else ""
    return f"{view['scope']} of {view['of'] or 'everything'} is paused since epoch {view['since']}{why}"


def refused_words(one: RefusedProposal) -> str:
    """A proposal of an agent that is refused."""
    return f"{one.command} of {one.subject} is refused since {when(one.since)}: {one.code}: {one.detail}"
