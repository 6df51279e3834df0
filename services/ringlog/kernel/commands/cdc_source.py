"""One source, one writer: what two CDC writers log twice is in the log of changes twice, for ever.

A registration names the topic that its writer logs. While one that is not fenced does so, no other may: also two that
start at the same moment are told apart, since the metadata log takes one registration after the other.
"""

from __future__ import annotations

from ringlog.kernel.state import CdcWriter, ClusterState, in_order

SOURCE_LENGTH_MAX = 249
"""As long as the name of a topic can be."""


def source_holder(state: ClusterState, name: str, source: str) -> CdcWriter | None:
    """Who keeps the writer ``name`` from logging ``source``: another one that logs it, and is not fenced.

    One that never said what it logs may log this, too. But that counts only against a name that is not at work: of two
    writers of the first release, each with a source of its own, one has to say so first.
    """
    if not source:
        return None
    known = state.writers.get(name)
    is_at_work = known is not None and known.fenced is None
    logging = (other for _, other in in_order(state.writers) if other.name != name and other.fenced is None)
    return next((other for other in logging if other.source == source or not (other.source or is_at_work)), None)


def held_source(other: CdcWriter, source: str) -> str:
    """What is said of a source that another writer logs."""
    logs = f"logs {source}" if other.source else f"never said that it does not log {source}"
    return f"the CDC writer {other.name} {logs}, and nothing is logged twice; fence that writer to take its place"
