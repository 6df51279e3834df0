"""An independent model of the ring: token owners, current movements, and the resulting groups.

It is built from the applied entries alone and shares with the kernel only their fields. Layouts are computed naively
(``ringlog_testing.placement.layout``). A movement changes the token map or one keyspace's setting. At two stages
(``READS_AT``, ``WRITES_AT``), readers and writers begin to use the new one. The groups at each stage, the gaining
nodes, the gates and the locked ranges follow from that.

``SeenRange`` stores each member's first epoch. A split copies it, and a merge takes the later of two. It restarts when
a node enters a group. A cancel restores it from the copy made at the movement's admission. Keyspaces in tablets are not
included; the simulator's own checks cover them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.movements import Move as MoveTokens
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.values import Replication, Value
from ringlog_testing.placement.layout import (
    NO_RANGE,
    AppliedLog,
    Layout,
    Owners,
    SeenRange,
    covering,
    ends_of,
    key_of,
    replicas,
    walk,
)

_SWAP = ("requested", "prepared", "write_both_read_old", "write_both_read_new", "finished")
_NEW_TOKENS = (*_SWAP[:2], "commit_cdc_generation", "publish_cdc_generation", *_SWAP[2:])

ORDER: Mapping[str, tuple[str, ...]] = {
    "join": _NEW_TOKENS,
    "move": _NEW_TOKENS,
    "leave": _SWAP,
    "replace": _SWAP,
    "remove": _SWAP,
    "alter": _SWAP,
    "rebuild": ("requested", "streaming", "finished"),
    "assassinate": ("finished",),
}
SPLIT_AT, WRITES_AT, READS_AT = "prepared", "write_both_read_old", "write_both_read_new"

STANDING: Mapping[str, tuple[str, str, str]] = {
    "join": ("joining", "normal", "none"),
    "move": ("moving", "normal", "normal"),
    "leave": ("leaving", "left", "normal"),
    "remove": ("leaving", "left", "normal"),
    "replace": ("joining", "normal", "none"),
    "assassinate": ("leaving", "left", "normal"),
}
"""Kind of movement to its node's state during the movement, after its end, and after a cancel."""


Side = tuple[Replication, Owners]
Sides = tuple[Side, Side, Side]


class Exchange(Value):
    """In a range of replication ``key`` that ends at ``end``, a movement changes the group ``old`` to ``new``."""

    key: str
    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(slots=True)
class SeenMovement:
    """A movement. ``marks``: (stage, epoch) entered so far. ``locked``: (key, start, end, changed) at its admission."""

    id: str
    kind: str
    node: str
    tokens: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    replaced: str = ""
    ignored: frozenset[str] = frozenset()
    keyspace: str = ""
    setting: Replication | None = None
    own: str = ""
    datacenter: str = ""
    marks: list[tuple[str, int]] = field(default_factory=list)
    exchanges: tuple[Exchange, ...] = ()
    streaming: frozenset[str] = frozenset()
    locked: tuple[tuple[str, int, int, int], ...] = ()
    saved: dict[str, Layout] = field(default_factory=dict)
    is_stopped: bool = False

    @property
    def stage(self) -> str:
        """Return the current stage."""
        return self.marks[-1][0]

    def reached(self, stage: str) -> bool:
        """Return True from ``stage`` on."""
        return any(entered == stage for entered, _ in self.marks)

    def gaining(self) -> set[str]:
        """Return the nodes that receive rows: new members of groups, and further members that the plan lets stream."""
        fixed = {self.node} if self.kind in ("join", "replace", "rebuild") else set()
        return fixed.union(self.streaming).union(*(set(change.new) - set(change.old) for change in self.exchanges))

    @property
    def parting(self) -> str:
        """Return the node that has left after the movement, or empty text."""
        return self.replaced or (self.node if self.kind in ("leave", "remove") else "")

    def map(self, owners: Owners) -> Owners:
        """Return the token map after the movement."""
        kept = {token: node for token, node in owners.items() if token not in self.gone}
        return {**kept, **dict.fromkeys(self.tokens, self.node)}


class Movements:
    """The model. ``upto`` updates it to an epoch of the true log. ``flying``: movements that have not ended, by id.

    ``created``: keyspace to its first epoch. ``refreshed``: the epoch that last recomputed groups.
    ``forfeited``: a node was assassinated, so rows may be missing permanently.
    """

    def __init__(self, log: AppliedLog) -> None:
        self._log = log
        self.epoch = 0
        self.owners: Owners = {}
        self.keyspaces: dict[str, Replication] = {}
        self.created: dict[str, int] = {}
        self.places: dict[str, tuple[str, str]] = {}
        self.standing: dict[str, str] = {}
        self.down: set[str] = set()
        self.flying: dict[str, SeenMovement] = {}
        self.ended: dict[str, SeenMovement] = {}
        self.layouts: dict[str, Layout] = {}
        self.refreshed = 0
        self.forfeited = False
        self.gate_prepared = 1

    def of(self, log: AppliedLog) -> Movements:
        """Return a copy for the log of another run. Nothing may be in flight. Ended movements no longer change."""
        assert not self.flying, "no movement is in flight when a run starts"
        copied = Movements(log)
        copied.epoch, copied.refreshed = self.epoch, self.refreshed
        copied.forfeited, copied.gate_prepared = self.forfeited, self.gate_prepared
        copied.owners, copied.down = dict(self.owners), set(self.down)
        copied.keyspaces, copied.created = dict(self.keyspaces), dict(self.created)
        copied.places, copied.standing = dict(self.places), dict(self.standing)
        copied.ended = dict(self.ended)
        copied.layouts = {key: dict(layout) for key, layout in self.layouts.items()}
        return copied

    def upto(self, epoch: int) -> Movements:
        """Apply the entries up to ``epoch``."""
        while self.epoch < epoch:
            self.epoch += 1
            entry = self._log.entries[self.epoch]
            if entry is not None:
                self._take(entry.command)
        return self

    def begin(
        self,
        epoch: int,
        owners: Owners,
        places: Mapping[str, tuple[str, str]],
        keyspaces: Mapping[str, Replication],
        since: int,
    ) -> None:
        """Start with a quiet ring at ``epoch``. All its groups begin at ``since``."""
        self.owners, self.places, self.keyspaces = dict(owners), dict(places), dict(keyspaces)
        members = set(owners.values())
        self.standing = {node: "normal" if node in members else "none" for node in places}
        self.created = dict.fromkeys(keyspaces, since)
        self.epoch = since
        self._refresh()
        self.epoch = epoch

    def key(self, keyspace: str) -> str:
        """Return the key of a keyspace's ranges."""
        for move in self.flying.values():
            if move.keyspace == keyspace and move.reached(SPLIT_AT):
                return move.own
        return key_of(self.keyspaces[keyspace])

    def _take(self, applied: object) -> None:
        match applied:
            case RegisterNode(id=node, datacenter=datacenter, rack=rack):
                self.places[node], self.standing[node] = (datacenter, rack), "none"
            case UnregisterNode(node):
                self.standing[node] = "left"
            case DeclareDown(node):
                self.down.add(node)
            case DeclareUp(node):
                self.down.discard(node)
            case ChangeSettings(values):
                self.gate_prepared = dict(values).get("gate_prepared", self.gate_prepared)
            case CreateKeyspace(name, replication) if replication.strategy not in ("tablets", "zone"):
                self.keyspaces[name], self.created[name] = replication, self.epoch
                self._refresh()
            case DropKeyspace(name) if name in self.keyspaces:
                del self.keyspaces[name]
                self._refresh()
            case AdvanceOperation(name, to) if name in self.flying:
                self._advance(self.flying[name], to)
            case CancelOperation(name) if name in self.flying:
                self._cancel(self.flying[name])
            case FailOperation(name, tries=tries) if name in self.flying:
                self.flying[name].is_stopped = True
                if not tries and not self.flying[name].reached(READS_AT) and not self._has_tablets(self.flying[name]):
                    self._cancel(self.flying[name])
            case RetryOperation(name, ignore_nodes=ignored, admits_loss=loses) if name in self.flying:
                self.flying[name].is_stopped = False
                leaver = self.down.intersection({self.flying[name].parting}) if loses and ignored else frozenset()
                self.flying[name].ignored |= {*ignored, *leaver}
                self.forfeited |= loses and bool(ignored)
            case Assassinate(node) if (coming := self._replacing(node)) is not None:
                self._cancel(coming)
            case Assassinate(node) if (leaving := self._parting(node)) is not None:
                self.forfeited = True
                leaving.marks.append(("finished", self.epoch))
                self._finish(leaving)
            case command:
                move = self._asked(command)
                if move is not None:
                    self._admit(move)

    def _asked(self, command: object) -> SeenMovement | None:
        """Return the movement that a command requests."""
        match command:
            case Join(node, tokens):
                return SeenMovement(f"join-{self.epoch}", "join", node, tokens)
            case MoveTokens(node, tokens):
                gone = tuple(token for token in self._tokens(node) if token not in tokens)
                return SeenMovement(f"move-{self.epoch}", "move", node, tokens, gone)
            case Leave(node):
                return SeenMovement(f"leave-{self.epoch}", "leave", node, (), self._tokens(node))
            case Remove(node, ignored):
                its = frozenset({*ignored, node})
                return SeenMovement(f"remove-{self.epoch}", "remove", node, (), self._tokens(node), ignored=its)
            case Assassinate(node):
                its = frozenset({node})
                return SeenMovement(
                    f"assassinate-{self.epoch}", "assassinate", node, (), self._tokens(node), ignored=its
                )
            case Replace(node, replaced, ignored):
                its = frozenset({*ignored, *self.down.intersection({replaced})})
                return SeenMovement(f"replace-{self.epoch}", "replace", node, self._tokens(replaced), (), replaced, its)
            case Rebuild(node, datacenter):
                return SeenMovement(f"rebuild-{self.epoch}", "rebuild", node, datacenter=datacenter)
            case AlterKeyspace(name, setting) if name in self.keyspaces:
                own = f"{key_of(self.keyspaces[name])}>{key_of(setting)}"
                return SeenMovement(f"alter-{self.epoch}", "alter", "", keyspace=name, setting=setting, own=own)
        return None

    def _parting(self, node: str) -> SeenMovement | None:
        """Return the movement of a leaving node, or None."""
        moves = [m for m in self.flying.values() if m.replaced == node or (m.gone and not m.tokens and m.node == node)]
        return moves[0] if moves else None

    def _replacing(self, node: str) -> SeenMovement | None:
        """Return the movement of a node that replaces another one and has tablets."""
        return next((m for m in self.flying.values() if m.node == node and self._has_tablets(m)), None)

    def _has_tablets(self, move: SeenMovement) -> bool:
        """Return True if a replacing node has a tablet of the replaced node, or is about to get one."""
        maps = self._log.states[self.epoch - 1].tablets.values() if move.replaced else ()
        moving = (one.node for tablets in maps for moves in tablets.transitions.values() for one in moves.next)
        held = (node for tablets in maps for node, count in zip(tablets.nodes, tablets.held, strict=True) if count)
        return move.node in {*moving, *held}

    def _tokens(self, node: str) -> tuple[int, ...]:
        return tuple(sorted(token for token, owner in self.owners.items() if owner == node))

    def _admit(self, move: SeenMovement) -> None:
        move.saved = {key: dict(layout) for key, layout in self.layouts.items()}
        move.exchanges = self._exchanges(move)
        move.locked = self._locks(move)
        self.flying[move.id] = move
        if move.kind == "assassinate":
            self.forfeited |= bool(move.exchanges)
            move.marks.append(("finished", self.epoch))
            self._finish(move)
        elif move.kind == "alter" and not move.exchanges:
            self._finish(move)
            del self.ended[move.id]
        else:
            move.marks.append(("requested", self.epoch))
            self._stand(move, 0)

    def _stand(self, move: SeenMovement, moment: int) -> None:
        if move.kind in STANDING:
            self.standing[move.node] = STANDING[move.kind][moment]
        if move.replaced:
            self.standing[move.replaced] = ("leaving", "left", "normal")[moment]

    def _exchanges(self, move: SeenMovement) -> tuple[Exchange, ...]:
        """Return every range whose members differ before and after the movement, in any order."""
        found: list[Exchange] = []
        if move.setting is not None:
            pairs = [(move.own, self.keyspaces[move.keyspace], move.setting)]
        else:
            pairs = [(key, setting, setting) for key, setting in self.settings()]
        after = move.map(self.owners)
        for key, before, setting in pairs:
            tokens = {*self.owners, *after}
            ends = sorted(ends_of(before, tokens) | ends_of(setting, tokens))
            for start, end in pairwise([*ends[-1:], *ends]):
                old = replicas(before, self.owners, self.places, end)
                new = replicas(setting, after, self.places, end)
                if set(old) != set(new):
                    found.append(Exchange(key, start, end, old, new))
        return tuple(found)

    def _locks(self, move: SeenMovement) -> tuple[tuple[str, int, int, int], ...]:
        """Return the current ranges that are changed, split, merged or streamed."""
        locked = []
        for key, layout in sorted(self.layouts.items()):
            inside = {change.end for change in move.exchanges if change.key == key}
            if move.kind == "alter":
                inside = set(layout) if key == key_of(self.keyspaces[move.keyspace]) else set()
            elif move.kind == "rebuild":
                inside = {end for end, span in layout.items() if move.node in span.read and len(span.read) > 1}
            elif key != "entire":
                inside.update(token for token in move.tokens if token not in self.owners)
                inside.update(end for token in move.gone for end in (token, token + 1))
            ends = {covering(layout, token) for token in inside if layout}
            order = sorted(layout)
            locked += [(key, order[i - 1], end, layout[end].changed) for i, end in enumerate(order) if end in ends]
        return tuple(locked)

    def _advance(self, move: SeenMovement, to: str) -> None:
        if to == "prepared" and move.kind == "alter":
            self.layouts[move.own] = dict(self.layouts[key_of(self.keyspaces[move.keyspace])])
        move.marks.append((to, self.epoch))
        if to == "finished":
            self._finish(move)
        else:
            self._refresh()

    def _finish(self, move: SeenMovement) -> None:
        """End the movement and keep its new layout."""
        if move.setting is None:
            self.owners = move.map(self.owners)
            self._stand(move, 1)
            self._end(move)
            self._refresh()
            return
        old, new = key_of(self.keyspaces[move.keyspace]), key_of(move.setting)
        current = self.layouts.get(move.own) or self.layouts[old]
        self.keyspaces[move.keyspace] = move.setting
        self._end(move)
        there = self.layouts.get(new)
        own = self._laid(current, ends_of(move.setting, self.owners), ((move.setting, self.owners),) * 3)
        self.layouts[new] = own if there is None else {e: span.with_others([own[e]]) for e, span in there.items()}
        self._refresh()

    def _cancel(self, move: SeenMovement) -> None:
        has_left = self._has_tablets(move)
        move.marks.append(("cancelled", self.epoch))
        self._stand(move, 2)
        if has_left:
            self.standing[move.node] = "left"
        self._end(move)
        self._refresh()
        for key, _, end, _ in move.locked:
            if key in self.layouts and end in self.layouts[key]:
                self.layouts[key][end] = move.saved[key][end]
        self._refresh()  # a movement of other ranges may have changed the order of the owners since

    def _end(self, move: SeenMovement) -> None:
        del self.flying[move.id]
        self.ended[move.id] = move

    # --------------------------------------------------------------------------------------------- groups

    def settings(self) -> list[tuple[str, Replication]]:
        """Return (key, setting) of every replication setting in use."""
        used = {key_of(setting): setting for setting in self.keyspaces.values()}
        return sorted(used.items(), key=lambda item: item[0])

    def after(self, stage: str) -> Owners:
        """Return the token map with all movements that have reached ``stage``."""
        owners = self.owners
        for move in self.flying.values():
            if move.reached(stage):
                owners = move.map(owners)
        return owners

    def groups(self, key: str, end: int) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return, for the range that ends at ``end``, its readers and the two groups that a write needs a quorum of.

        The two groups may be equal.
        """
        read, old, new = (replicas(setting, owners, self.places, end) for setting, owners in self._sides(key))
        return read, old, new

    def _sides(self, key: str) -> Sides:
        """Return setting and token map of the readers, of the old writers, and of the new writers."""
        setting = {**dict(self.settings()), **{m.own: self.keyspaces[m.keyspace] for m in self._altering()}}[key]
        reading = writing = setting
        for move in self._altering():
            if move.own == key and move.setting is not None:
                reading = move.setting if move.reached(READS_AT) else setting
                writing = move.setting if move.reached(WRITES_AT) else setting
        return (reading, self.after(READS_AT)), (setting, self.owners), (writing, self.after(WRITES_AT))

    def _altering(self) -> list[SeenMovement]:
        return [move for move in self.flying.values() if move.setting is not None and move.reached(SPLIT_AT)]

    def _laid(self, earlier: Layout | None, ends: set[int], sides: Sides) -> Layout:
        """Return ranges with these ends, and each member's first epoch, from the earlier layout."""
        fine = sorted({*ends, *(earlier or ())})
        ranges: Layout = {}
        for end in fine:
            read, old, target = (replicas(setting, owners, self.places, end) for setting, owners in sides)
            order = self._order(end)
            read = tuple(sorted(read, key=order.index))
            write = tuple(sorted({*old, *target}, key=order.index))
            before = earlier[covering(earlier, end)] if earlier else NO_RANGE
            fresh = SeenRange(dict.fromkeys(read, self.epoch), dict.fromkeys(write, self.epoch), self.epoch)
            ranges[end] = fresh if earlier is None else before.next(read, write, self.epoch)
        layout: Layout = {}
        for end in sorted(ends):
            parts = [piece for piece in fine if piece not in ends and covering(ends, piece) == end]
            layout[end] = ranges[end].with_others(ranges[part] for part in parts) if parts else ranges[end]
        return layout

    def _order(self, end: int) -> list[str]:
        """Return all nodes in walk order. A joining node is at its future tokens, a replacing node next to the replaced
        one.
        """
        owners = dict(self.owners)
        replacing: dict[str, str] = {}
        for move in self.flying.values():
            if move.kind == "join":
                owners.update(dict.fromkeys(move.tokens, move.node))
            if move.replaced:
                replacing[move.replaced] = move.node
        met = []
        for node in walk(owners, end):
            met += [node, replacing[node]] if node in replacing else [node]
        return met

    def _refresh(self) -> None:
        """Recompute all groups, and each member's first epoch."""
        self.refreshed = self.epoch
        tokens = {*self.owners, *self.after(SPLIT_AT)}
        layouts = {
            key: self._laid(self.layouts.get(key), ends_of(setting, tokens), self._sides(key))
            for key, setting in self.settings()
        }
        for move in self._altering():
            if move.setting is not None:
                both = ends_of(self.keyspaces[move.keyspace], self.owners) | ends_of(move.setting, self.owners)
                layouts[move.own] = self._laid(self.layouts[move.own], both | set(self.owners), self._sides(move.own))
        self.layouts = layouts
