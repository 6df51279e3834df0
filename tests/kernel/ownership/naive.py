"""A second, brute-force answer to "who serves this token", one token at a time: the oracle of the placement tests."""

from __future__ import annotations


def replicas_at(owners: dict[int, str], factor: int, position: int) -> list[str]:
    """Walk the ring clockwise from ``position``, token by token, until enough distinct nodes are met."""
    met: list[str] = []
    ahead = sorted(token for token in owners if token >= position)
    around = sorted(token for token in owners if token < position)
    for token in ahead + around:
        if len(met) < factor and owners[token] not in met:
            met.append(owners[token])
    return met


def expected(
    before: dict[int, str], after: dict[int, str], factor: int, stage: str, position: int
) -> tuple[set[str], set[str]]:
    """(readers, writers) of a position while an operation leads from one token map to another."""
    old, new = set(replicas_at(before, factor, position)), set(replicas_at(after, factor, position))
    if stage == "write_both_read_old":
        return old, old | new
    if stage == "write_both_read_new":
        return new, old | new
    if stage == "finished":
        return new, new
    return old, old
