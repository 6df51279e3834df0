"""Intents of operators and nodes, resolved to commands.

An ``Intent`` is resolved on its author's newest state, immediately before it is submitted. Names become ids, and
missing values are chosen. Invariant: the command contains every choice, so that the fold is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from ringlog.client.tokens import allocate
from ringlog.kernel.commands.rules import SEED_BYTES
from ringlog.kernel.commands.topology.movements import Join, Move
from ringlog.kernel.commands.topology.operations import CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Command, NodeId, Token, Value, replace
from ringlog.protocol.effects import Draw

NUM_TOKENS = 8
"""The default number of tokens of a node."""

NUM_TOKENS_MAX = 65_536

NODE_FIELDS = ("node", "replaced", "ignore_nodes", "nodes", "applied", "learners", "excluded")
"""The fields of commands that contain node ids. An intent may contain names there."""


class InvalidCommand(Value):
    """The reason why an intent cannot become a command.

    ``code``: bad_json, unknown_command, unknown_field, missing_field, bad_field or ambiguous_operation.
    """

    code: str
    detail: str


Intent = Callable[[ClusterState, Draw], Command | InvalidCommand]

WHOLE_NUMBER = "must be an integer of 64 bits"
WHOLE_TEXT = "must be text without lone surrogates"


def resolved(intent: Intent, state: ClusterState, draw: Draw) -> Command | InvalidCommand:
    """Resolve an intent on ``state``. InvalidCommand if a value does not fit into a log record."""
    command = intent(state, draw)
    unfit = None if isinstance(command, InvalidCommand) else _unfit("", command)
    return command if unfit is None else InvalidCommand("bad_field", unfit)


def _unfit(path: str, value: Any) -> str | None:
    """Return the path and the violated rule of the first value that does not fit into a record."""
    if isinstance(value, Value):
        inner = ((f"{path}.{name}" if path else name, getattr(value, name)) for name in value.__struct_fields__)
    elif isinstance(value, tuple):
        inner = ((f"{path}[{index}]", one) for index, one in enumerate(value))
    elif isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else f"{path}: {WHOLE_NUMBER}"
    else:
        return None if not isinstance(value, str) or is_whole(value) else f"{path}: {WHOLE_TEXT}"
    return next((found for name, one in inner if (found := _unfit(name, one)) is not None), None)


def is_whole(text: str) -> bool:
    """Return True for text that UTF-8 can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def node_id(state: ClusterState, given: str) -> NodeId:
    """Return the id of a node given by id or name. An unknown name is returned as it is, and the command's rule rejects
    it.
    """
    return given if given in state.nodes else state.node_names.get(given, given)


def seed_of(draw: Draw) -> bytes:
    """Draw the random bytes of a command that creates CDC streams."""
    return draw.take(SEED_BYTES)


def named(command: Command) -> Intent:
    """Return the intent of a command whose nodes are given by name or id."""

    def intent(state: ClusterState, _draw: Draw) -> Command:
        found: dict[str, Any] = {}
        for name in command.__struct_fields__:
            if name in NODE_FIELDS:
                given = getattr(command, name)
                if given is not None:
                    one = isinstance(given, str)
                    found[name] = node_id(state, given) if one else tuple(node_id(state, node) for node in given)
        return replace(command, **cast(Any, found))

    return intent


def operation_id(state: ClusterState, given: str, *, changes: bool = False) -> str | InvalidCommand:
    """Return the id of the operation or request that ``given`` identifies, in full or by its beginning.

    An unknown id is returned as it is. ``changes``: the command changes the operation. Operations in flight then
    precede ended ones, and the number must be complete, so that ``join-1`` never cancels ``join-118``.
    """
    if given in state.operations or given in state.requests:
        return given
    begun = {one for one in (*state.operations, *state.requests) if given and one.startswith(given)}
    live = begun.intersection(one.id for one in in_flight(state)) if changes else ()
    found = sorted(live or begun)
    if not found:
        return given
    if len(found) == 1 and not (changes and given[-1].isdigit()):
        return found[0]
    return InvalidCommand("ambiguous_operation", f"{given} may be {', '.join(found)}: pass the whole id")


def of_operation(command: CancelOperation | FailOperation | RetryOperation) -> Intent:
    """Return the intent of a command whose operation may be given by the beginning of its id."""

    def intent(state: ClusterState, draw: Draw) -> Command | InvalidCommand:
        found = operation_id(state, command.operation, changes=True)
        return found if isinstance(found, InvalidCommand) else named(replace(command, operation=found))(state, draw)

    return intent


def join_with(state: ClusterState, node: str, tokens: Sequence[Token] | int, draw: Draw) -> Join:
    """Return the Join of a registered node with these tokens, or with this number of tokens that balance the ring.

    Raises ValueError.
    """
    return Join(*_chosen(state, node, tokens, draw))


def join(node: str, tokens: Sequence[Token] | int = NUM_TOKENS) -> Intent:
    """Return the intent of ``join_with``."""
    return lambda state, draw: join_with(state, node, tokens, draw)


def move(node: str, tokens: Sequence[Token] | int) -> Intent:
    """Return the intent that replaces a node's tokens by these, or by this number of tokens that balance the ring."""
    return lambda state, draw: Move(*_chosen(state, node, tokens, draw))


def _chosen(
    state: ClusterState, node: str, tokens: Sequence[Token] | int, draw: Draw
) -> tuple[NodeId, tuple[Token, ...], bytes]:
    """Return (node, tokens, seed). Chosen tokens follow from the seed, which the command contains."""
    node_uuid, seed = node_id(state, node), seed_of(draw)
    if isinstance(tokens, int) and not 1 <= tokens <= NUM_TOKENS_MAX:
        raise ValueError(f"num_tokens: must be between 1 and {NUM_TOKENS_MAX}")
    return node_uuid, allocate(state, node_uuid, tokens, seed) if isinstance(tokens, int) else tuple(tokens), seed
