"""All invariants, and the check that finds the broken ones in a state.

The check is pure and total: it returns an answer for any state, also for a broken one that makes a rule raise. It does
not affect the fold: the checking process reports the result (code ``invariant_broken``), and the log continues. The
simulator checks after every entry, the random tests after every step, agents periodically (``agents.roles.role``).

The cost of a check depends on the difference from an already checked state. An entry that changes only the history
costs a few microseconds, a change of token owners some passes over all ranges.
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
"""The code of a state that breaks an invariant. It is not a rejection: no decision depends on it."""

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
"""Maximum number of examples reported for each broken invariant."""

_PARTS: Final = tuple(sorted({part for one in INVARIANTS for part in one.parts}))
_values = attrgetter(*_PARTS)

assert len({one.name for one in INVARIANTS}) == len(INVARIANTS), "names of invariants are unique"
assert all(hasattr(EMPTY_STATE, part) for part in _PARTS), "each invariant names sections of the state"


def violations(state: ClusterState, known: ClusterState = EMPTY_STATE) -> tuple[BrokenInvariant, ...]:
    """Return the broken invariants of a state; empty if all hold. Never raise.

    ``known``: an earlier valid state of the same log. Values that both states share are not checked again.
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
    """Return the invariants that a change of these sections can break."""
    return tuple(one for one in INVARIANTS if not one.parts.isdisjoint(changed))


def _details(one: Invariant, state: ClusterState, known: ClusterState) -> list[str]:
    try:
        return list(islice(one.check(state, known), DETAILS_MAX))
    except Exception as tripped:
        # A check may depend on another invariant: that one reports the cause.
        return [f"the check failed: {type(tripped).__name__}: {tripped}"]
