"""All invariants, and the look at a state that finds those that it breaks.

The look is pure and total: it gives an answer for any state, a broken one included, where a check may well trip. It
changes nothing that the fold does: the process that checks reports it (code ``invariant_broken``), and the log goes
on. The simulator looks after every entry, the tests of random lives after every step, agents now and then
(``agents.roles.role``).

To look at a state costs as much as what it does not share with one that was looked at before: a few microseconds for
an entry that changes nothing but the history, some passes over all ranges when tokens change hands.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Final

from ringlog.kernel.invariants import cdc, cluster, operations, ring, tablets, verdicts, zones
from ringlog.kernel.invariants.shape import BrokenInvariant, Invariant
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState

CODE: Final = "invariant_broken"
"""The code of a state that breaks an invariant. It is no refusal: nothing is decided by it."""

INVARIANTS: Final[tuple[Invariant, ...]] = (
    *cluster.INVARIANTS,
    *ring.INVARIANTS,
    *operations.INVARIANTS,
    *cdc.INVARIANTS,
    *tablets.INVARIANTS,
    *verdicts.INVARIANTS,
    *zones.INVARIANTS,
    *cluster.SERVICE_INVARIANTS,
)
DETAILS_MAX: Final = 3
"""At most N examples are reported of each invariant that is broken."""

_PARTS: Final = tuple(sorted({part for one in INVARIANTS for part in one.parts}))
_values = attrgetter(*_PARTS)

assert len({one.name for one in INVARIANTS}) == len(INVARIANTS), "an invariant is known by its name"
assert all(hasattr(EMPTY_STATE, part) for part in _PARTS), "invariants speak of parts of the state"


def violations(state: ClusterState, known: ClusterState = EMPTY_STATE) -> tuple[BrokenInvariant, ...]:
    """What is broken in a state; nothing if all invariants hold. Never raises.

    ``known``: an earlier state of the same log that is sound: what the two share is not looked at again.
    """
    both = zip(_PARTS, _values(state), _values(known), strict=True)
    changed = frozenset([part for part, after, before in both if after is not before])
    return tuple(
        BrokenInvariant(one.name, one.sentence, detail)
        for one in _concerned(changed)
        for detail in _details(one, state, known)
    )


@lru_cache(256)
def _concerned(changed: frozenset[str]) -> tuple[Invariant, ...]:
    """The invariants that what changed can break."""
    return tuple(one for one in INVARIANTS if not one.parts.isdisjoint(changed))


def _details(one: Invariant, state: ClusterState, known: ClusterState) -> list[str]:
    try:
        return list(islice(one.check(state, known), DETAILS_MAX))
    except Exception as tripped:
        # A check may rest on what another invariant promises: that one tells the cause.
        return [f"it cannot be checked: {type(tripped).__name__}: {tripped}"]
