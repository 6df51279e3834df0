"""Commands that end a wait. Each is tried on the state before it is printed.

A line of advice has one or more commands, in the order to type them. A dry run folds their effects one after the other.
Advice that the state rejects is not printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ringlog.kernel.commands.topology.movements import Assassinate, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, UnregisterNode
from ringlog.kernel.commands.topology.operations import CancelOperation, RetryOperation
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import ClusterState, Node, Operation
from ringlog.kernel.tablets.mutual_exclusion import tables_on
from ringlog.kernel.values import Command, NodeId, Value, replace
from ringlog.operator.intents.intents import Intent, InvalidCommand, named, resolved
from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import SeededDraw

REASON: Final = "…"
"""The placeholder for the operator's reason in printed commands."""
NEW: Final = "NEW"
"""The placeholder for the name of a node that is not started yet."""
NEW_ID: Final = "00000000-0000-4000-8000-00000000000d"


class Step(Value):
    """A command to type: the words after ``ringlog``, and the intent that it submits.

    ``starts``: a node that the operator has started before this step, under the name ``NEW``.
    """

    words: str
    intent: Intent
    starts: Node | None = None


def state_after(state: ClusterState, *steps: Step) -> ClusterState | None:
    """Return the state after the steps; None if it rejects one of them."""
    for step in steps:
        if step.starts is not None:
            state = replace(state, nodes=state.nodes.set(NEW_ID, step.starts))
        command: Command | InvalidCommand = resolved(step.intent, state, SeededDraw(b"advice"))
        if isinstance(command, InvalidCommand):
            return None
        decided = decide(state, command, EntryContext(state.epoch + 1, state.state_id, state.time))
        if not isinstance(decided, Accepted):
            return None
        state = replace(decided.state, epoch=state.epoch + 1)
    return state


def line(text: str, *steps: Step, remark: str = "") -> str:
    """Return the steps as a line to print."""
    commands = ", then ".join(f"ringlog {step.words}" for step in steps)
    return f"{text}: {commands}" + (f" ({remark})" if remark else "")


def remedy_line(state: ClusterState, text: str, *steps: Step, remark: str = "") -> tuple[str, ...]:
    """Return the line if the state accepts the steps, else nothing."""
    return () if state_after(state, *steps) is None else (line(text, *steps, remark=remark),)


def submit(command: dict[str, Any]) -> Step:
    """Return the step for a command without a subcommand."""
    return Step(f"submit '{json.dumps(command, ensure_ascii=False)}'", _typed(command))


def _typed(command: dict[str, Any]) -> Intent:
    """Return the intent of a JSON command. The parser is imported late: it is slow to load, and most advice does not
    use it.
    """

    def intent(state: ClusterState, draw: Draw) -> Command | InvalidCommand:
        from ringlog.operator.intents.json_commands import from_json

        return from_json(state, command, draw)

    return intent


def down(node: Node) -> tuple[Step, ...]:
    """Return the step that declares a node down, if it is not."""
    step = Step(f"node down {node.name} --reason {REASON}", named(DeclareDown(node.id, REASON)))
    return () if node.down else (step,)


def cancel(operation: Operation) -> Step:
    """Return the step that cancels an operation."""
    return Step(f"operation cancel {operation.id} --reason {REASON}", named(CancelOperation(operation.id, REASON)))


def retry(operation: Operation, ignored: Node | None = None, *, admits_loss: bool = False) -> Step:
    """Return the step that retries an operation, optionally without a node that was declared down."""
    without = "" if ignored is None else f" --ignore {ignored.name}"
    loss = " --admit-loss" if admits_loss else ""
    command = RetryOperation(operation.id, REASON, () if ignored is None else (ignored.id,), admits_loss)
    return Step(f"operation retry {operation.id}{without} --reason {REASON}{loss}", named(command))


def unregister(node: Node) -> Step:
    """Return the step that unregisters a node without ranges."""
    return Step(f"node unregister {node.name}", named(UnregisterNode(node.id)))


def remove(node: Node) -> Step:
    """Return the step that removes a node that was declared down."""
    return Step(f"node remove {node.name}", named(Remove(node.id)))


def swap(node: Node) -> Step:
    """Return the step that replaces a node by a newly started one."""
    new = replace(node, id=NEW_ID, name=NEW, address="new.invalid:1", state="none", tokens=(), down=False)
    started = replace(new, down_reason="", replaced="")
    return Step(f"node replace {NEW} {node.name}", named(Replace(NEW_ID, node.id)), started)


def replaced_source(state: ClusterState, found: Operation) -> NodeId:
    """Return the replaced node if the new one gets ranges or tablets from it; else empty.

    Tablets of a node that was declared down come from other replicas.
    """
    if any(source.source == found.replaced for source in found.plan.sources):
        return found.replaced
    old = state.nodes.get(found.replaced)
    return old.id if old is not None and not old.down and tables_on(state, old.id) else ""


def replace_again(state: ClusterState, found: Operation) -> tuple[str, ...]:
    """Return the line that repeats a replacement from other sources, if the replaced node is its source and is dead.

    The sources of ranges are part of the plan, so a declaration alone does not change them. Once the new node has
    tablets, the replacement cannot be cancelled, and the declaration changes the sources of the other tablets.
    """
    if not replaced_source(state, found):
        return ()
    new, old = state.nodes[found.node], state.nodes[found.replaced]
    text = f"if {old.name} is permanently lost"
    ignored = "".join(f" --ignore {state.nodes[node].name}" for node in found.ignored)
    again = Step(f"node replace {new.name} {old.name}{ignored}", named(Replace(new.id, old.id, found.ignored)))
    found_ways = remedy_line(state, text, cancel(found), *down(old), again)
    return found_ways or (() if old.down else remedy_line(state, f"{text}, continue without it", *down(old)))


def assassinate(node: Node) -> Step:
    """Return the step that removes a node that was declared down without streaming its rows."""
    return Step(f"node assassinate {node.name}", named(Assassinate(node.id)))


def reset(zone: str) -> Step:
    """Return the step that resets a zone's partitions without a majority."""
    command = {"command": "ResetPartitions", "zone": zone, "admits_loss": True}
    return Step(f"zone reset {zone} --admit-loss", _typed(command))


def without_node(state: ClusterState, node: Node, *first: Step, text: str) -> Iterator[str]:
    """Yield the lines that remove a dead member after the steps ``first``: with its rows if possible."""
    begun = (*first, *down(node))
    kept = [way for last in (swap, remove) for way in remedy_line(state, text, *begun, last(node))]
    yield from kept or last_resort(state, node, *begun, text=text)


def last_resort(state: ClusterState, node: Node, *first: Step, text: str) -> Iterator[str]:
    """Yield the line that removes a dead member without its rows, with the expected loss."""
    steps = (*first, assassinate(node))
    if (after := state_after(state, *steps)) is not None:
        loss = max(after.operations.values(), key=lambda one: one.marks[0].epoch).reason
        yield line(f"{text}, as a last resort", *steps, remark=loss)
