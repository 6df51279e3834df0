"""A second, simple model of placements: what a position of the ring must look like, whatever happened before.

It knows tokens, nodes with datacenter and rack, a setting for each keyspace, and for each operation in flight the token
map (or the setting) afterwards and its stage. Everything is worked out position by position, by walking the ring, with
nothing kept from step to step: no ranges, no deltas, no locks. Source: the placement simulator of Cassandra's own
tests, restated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Tokens = dict[int, str]
Setting = tuple[Any, ...]
"""("simple", factor), ("network", ((datacenter, factor or racks), ...)) or ("entire",)."""

ORDER = ["requested", "prepared", "commit_cdc_generation", "publish_cdc_generation", "streaming"]
ORDER += ["write_both_read_old", "write_both_read_new", "finished"]


@dataclass
class Moving:
    """An operation in flight: the token map (or the setting of one keyspace) is changed by it."""

    kind: str
    add: Tokens = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    keyspace: str = ""
    setting: Setting = ()
    stage: str = "requested"

    def reached(self, stage: str) -> bool:
        return ORDER.index(self.stage) >= ORDER.index(stage)

    def after(self, tokens: Tokens) -> Tokens:
        return {token: node for token, node in tokens.items() if token not in self.gone} | self.add


@dataclass
class Model:
    """``places``: node to (datacenter, rack)."""

    places: dict[str, tuple[str, str]]
    tokens: Tokens
    keyspaces: dict[str, Setting]
    moving: dict[str, Moving] = field(default_factory=dict)

    def finish(self, operation: str) -> None:
        done = self.moving.pop(operation)
        self.tokens = done.after(self.tokens)
        if done.keyspace:
            self.keyspaces[done.keyspace] = done.setting

    def ends(self) -> set[int]:
        """Where ranges end: at the tokens of the members and at those that are moving in."""
        coming = {t for moving in self.moving.values() if moving.reached("prepared") for t in moving.add}
        return {*self.tokens, *coming}

    def groups(self, keyspace: str, position: int) -> tuple[frozenset[str], frozenset[str]]:
        """(readers, writers) of a position now; no two operations may change it."""
        setting = self.keyspaces[keyspace]
        old = natural(self.places, self.tokens, setting, position)
        reads = writes = old
        changing = []
        for name, moving in self.moving.items():
            tokens = moving.after(self.tokens)
            new = natural(self.places, tokens, moving.setting if moving.keyspace == keyspace else setting, position)
            if new != old:
                changing.append(name)
                reads = new if moving.reached("write_both_read_new") else old
                writes = old | new if moving.reached("write_both_read_old") else old
        assert len(changing) <= 1, f"{changing} change {position} of {keyspace} at once"
        return reads, writes


def walk(tokens: Tokens, position: int) -> list[str]:
    """The distinct nodes met clockwise from a position."""
    ordered = sorted(tokens, key=lambda token: (token < position, token))
    return list(dict.fromkeys(tokens[token] for token in ordered))


def natural(places: dict[str, tuple[str, str]], tokens: Tokens, setting: Setting, position: int) -> frozenset[str]:
    """The replicas of a position."""
    met = walk(tokens, position)
    if setting[0] == "simple":
        return frozenset(met[: setting[1]])
    if setting[0] == "entire":
        return frozenset(met)
    chosen: list[str] = []
    for datacenter, wanted in setting[1]:
        local = [node for node in met if places[node][0] == datacenter]
        chosen += _by_list(places, local, wanted) if isinstance(wanted, tuple) else _by_factor(places, local, wanted)
    return frozenset(chosen)


def _by_list(places: dict[str, tuple[str, str]], local: list[str], racks: tuple[str, ...]) -> list[str]:
    firsts = [next((node for node in local if places[node][1] == rack), None) for rack in racks]
    return [node for node in firsts if node is not None]


def _by_factor(places: dict[str, tuple[str, str]], local: list[str], factor: int) -> list[str]:
    """The first node of each rack, and as many others, first come first served, as racks are missing."""
    repeats = factor - len({places[node][1] for node in local})
    racks: set[str] = set()
    chosen: list[str] = []
    for node in local:
        if len(chosen) == factor:
            break
        if places[node][1] not in racks:
            racks.add(places[node][1])
            chosen.append(node)
        elif repeats > 0:
            repeats -= 1
            chosen.append(node)
    return chosen
