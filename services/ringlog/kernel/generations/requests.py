"""Requests to the cluster as a whole: check and repair of the CDC streams, with their outcome.

They have the stages of ScyllaDB's global topology requests, in one log. A request is a record from the entry that makes
it on, with requester, time and outcome. It needs no queue: only one generation at a time is between request and
publication, and all requests of that time wait for it.

::

    asked ─► nothing_to_do                      the streams are those that the ring needs
         └─► in_progress ─► done                the generation that it waits for is published
                         └► dropped             that generation was dropped: no token was left, its operation was
                                                cancelled, or it was withdrawn

Ended requests are kept like ended operations (``operations_kept_max``). The number of waiting ones is bounded by the
section's maximum.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.outcome import EntryContext
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, GlobalRequest, advance, in_order
from ringlog.kernel.values import GenerationId, replace

CHECK_AND_REPAIR: Final = "check_and_repair"
IN_PROGRESS: Final = "in_progress"
NOTHING_TO_DO: Final = "nothing_to_do"
DONE: Final = "done"
DROPPED: Final = "dropped"
OUTCOMES: Final = (IN_PROGRESS, NOTHING_TO_DO, DONE, DROPPED)
"""All outcomes; all but the first are final."""


def add_request(
    state: ClusterState, requester: str, generation: GenerationId | None, context: EntryContext
) -> ClusterState:
    """Return the state with a new request, which waits for ``generation``; None: there is nothing to do.

    A request without requester is not recorded.
    """
    if not requester:
        return state
    epoch, name = context.epoch, f"repair-{context.epoch}"
    new = GlobalRequest(name, CHECK_AND_REPAIR, requester, epoch, context.time, generation, IN_PROGRESS)
    if generation is None:
        new = _ended(new, NOTHING_TO_DO, context)
    kept = _bounded(state, state.requests.set(name, new))
    assert name in kept, "the newest item is not pruned"
    return advance(state, context.epoch, requests=kept)


def end_requests(state: ClusterState, generation: GenerationId, outcome: str, context: EntryContext) -> ClusterState:
    """Return the state after ``generation`` was published or dropped: requests that waited for it have this outcome."""
    assert outcome in (DONE, DROPPED), outcome
    requests = state.requests
    for name, found in in_order(requests):
        if found.outcome == IN_PROGRESS and found.generation == generation:
            requests = requests.set(name, _ended(found, outcome, context))
    return advance(state, context.epoch, requests=_bounded(state, requests))


def _ended(request: GlobalRequest, outcome: str, context: EntryContext) -> GlobalRequest:
    assert request.ended is None, "a request ends once"
    return replace(request, outcome=outcome, ended=context.epoch, ended_at=context.time)


def _bounded(state: ClusterState, requests: Map[str, GlobalRequest]) -> Map[str, GlobalRequest]:
    """Return the requests without the oldest ended ones above ``operations_kept_max``."""
    over = sorted((found.epoch, name) for name, found in requests.items() if found.ended is not None)
    for _, name in over[: max(0, len(over) - setting(state, "operations_kept_max"))]:
        requests = requests.delete(name)
    return requests
