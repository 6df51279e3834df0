"""Rules of the tokens that a node asks for, by Join and by Move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ringlog.kernel.commands.rules import broken_field, seed_rule
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.outcome import Rejected
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Token, is_token


def bad_tokens(state: ClusterState, tokens: Sequence[Token], seed: bytes) -> Rejected | None:
    """The rules of the fields themselves."""
    if (broken := broken_field(seed_rule(seed))) is not None:
        return broken
    most = setting(state, "tokens_per_node_max")
    if not 1 <= len(tokens) <= most:
        return Rejected("bad_field", f"tokens: must be 1 to {most} tokens, not {len(tokens)}")
    for token in tokens:
        if not is_token(token):
            return Rejected("bad_field", f"tokens: {token} is no token of the ring")
    ordered = sorted(tokens)
    twice = next((low for low, high in pairwise(ordered) if low == high), None)
    if twice is not None:
        return Rejected("duplicate_token", f"tokens: {twice} is there more than once")
    return None


def unavailable_tokens(state: ClusterState, tokens: Sequence[Token]) -> Rejected | None:
    """New tokens must be nobody's, also in the operations in flight, and the ring has a greatest number of ranges."""
    owners = target_owners(state)
    for token in sorted(tokens):
        if token in owners:
            return Rejected("token_owned", f"tokens: {token} belongs to {state.nodes[owners[token]].name}")
    if len(owners) + len(tokens) > setting(state, "ranges_max"):
        return Rejected("bad_field", f"tokens: the ring would have more than {setting(state, 'ranges_max')} ranges")
    return None
