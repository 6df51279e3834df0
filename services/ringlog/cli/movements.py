"""``ringlog node leave|move|replace|remove|assassinate|rebuild``, and ``down|up|unregister``.

The movements of nodes that are members, each an operation that is watched to its end. Who comes from nodetool may type
``decommission`` and ``removenode``, too.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.following import Timeout, Wait, ask
from ringlog.cli.submitting import submit_json
from ringlog.kernel.decide import decide
from ringlog.kernel.outcome import Accepted
from ringlog.kernel.outcome import Context as Moment
from ringlog.kernel.state import ClusterState
from ringlog.runtime.context import Context
from ringlog.wire.author_json import NUM_TOKENS, InvalidCommand, from_json
from ringlog.wire.draw import SystemDraw

Node = Annotated[str, typer.Argument(help="Name or id of the node.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="NODE", help="Go on without this node, which was declared down; may be repeated."),
]
Reason = Annotated[str, typer.Option(help="Kept in the log.")]


def leave(
    node: Node,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """A node gives its ranges to the others and leaves for good (nodetool decommission)."""
    _ask((bootstrap, cluster), {"command": "Leave", "node": node}, as_json, wait, timeout)


def move(
    node: Node,
    tokens: Annotated[
        list[int] | None, typer.Option("--token", help="A token that it owns afterwards; may be repeated.")
    ] = None,
    num_tokens: Annotated[
        int | None, typer.Option(help="Number of tokens to own afterwards, chosen so that the ring is balanced.", min=1)
    ] = None,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """A node exchanges its tokens for others (nodetool move, with any number of tokens)."""
    if (tokens is None) == (num_tokens is None):
        fail("bad_usage", "give either --token, once for each token, or --num-tokens", 2)
    wanted: dict[str, Any] = {"tokens": tokens} if tokens is not None else {"num_tokens": num_tokens}
    _ask((bootstrap, cluster), {"command": "Move", "node": node} | wanted, as_json, wait, timeout)


def join(
    node: Node,
    tokens: Annotated[
        list[int] | None, typer.Option("--token", help="A token that it asks for; may be repeated.")
    ] = None,
    num_tokens: Annotated[
        int, typer.Option(help="Number of tokens, chosen so that the ring is balanced.", min=1)
    ] = NUM_TOKENS,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """A node that is registered and runs asks for tokens; `node run --join` does so by itself."""
    wanted: dict[str, Any] = {"tokens": tokens} if tokens is not None else {"num_tokens": num_tokens}
    _ask((bootstrap, cluster), {"command": "Join", "node": node} | wanted, as_json, wait, timeout)


def replace(
    node: Annotated[str, typer.Argument(help="The new node, registered and running, without tokens.")],
    replaced: Annotated[str, typer.Argument(help="The node whose tokens it takes over, in the same rack.")],
    ignore: Ignore = None,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """A new node takes the place of one that is dead, or alive (replace_address_first_boot)."""
    command = {"command": "Replace", "node": node, "replaced": replaced, "ignore_nodes": ignore or []}
    _ask((bootstrap, cluster), command, as_json, wait, timeout)


def remove(
    node: Node,
    ignore: Ignore = None,
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """The others take over the ranges of a node that was declared down (nodetool removenode)."""
    command = {"command": "Remove", "node": node, "ignore_nodes": ignore or []}
    _ask((bootstrap, cluster), command, as_json, wait, timeout)


def assassinate(
    node: Node,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Last resort: a node that was declared down is out at once, nothing is streamed, rows may be lost."""
    context = resolve(bootstrap, cluster)
    command = {"command": "Assassinate", "node": node}
    if not yes:
        _confirm(context, node, command)
    ask(context, command, as_json)


def rebuild(
    node: Node,
    source_datacenter: Annotated[
        str, typer.Option("--from", metavar="DATACENTER", help="Stream from the replicas there only.")
    ] = "",
    wait: Wait = True,
    timeout: Timeout = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """A node streams all its ranges anew from the other replicas; nobody's ranges change."""
    command = {"command": "Rebuild", "node": node, "source_datacenter": source_datacenter}
    _ask((bootstrap, cluster), command, as_json, wait, timeout)


def down(
    node: Node, reason: Reason, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """Declare that a node does not run. Nothing moves by this; it permits remove, ignore and assassinate."""
    submit_json(resolve(bootstrap, cluster), {"command": "DeclareDown", "node": node, "reason": reason}, as_json)


def up(
    node: Node, reason: Reason = "", bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False
) -> None:
    """Declare that a node which was declared down runs again."""
    submit_json(resolve(bootstrap, cluster), {"command": "DeclareUp", "node": node, "reason": reason}, as_json)


def unregister(node: Node, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """A node that never joined is gone for good; its name and id stay taken."""
    submit_json(resolve(bootstrap, cluster), {"command": "UnregisterNode", "node": node}, as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to those of ``ringlog node``."""
    for command in (join, leave, move, replace, remove, assassinate, rebuild, down, up, unregister):
        app.command(command.__name__)(command)
    app.command("decommission", hidden=True)(leave)
    app.command("removenode", hidden=True)(remove)


def _ask(
    where: tuple[str | None, str | None], command: dict[str, Any], as_json: bool, wait: bool, timeout_s: float | None
) -> None:
    ask(resolve(*where), command, as_json, wait=wait, timeout_s=timeout_s)


def _confirm(context: Context, node: str, command: dict[str, Any]) -> None:
    """Say what would be lost, by trying it on the present state, and ask; exit status 1 without a yes."""
    with connect(context) as client:
        told = foretold(client.read_barrier(), command)
    out.print(f"{node} would have left with one entry, which cannot be undone: {told}", markup=False)
    if not sys.stdin.isatty():
        fail("not_confirmed", "give --yes to do it")
    if not typer.confirm("Do it?"):
        fail("not_confirmed", "nothing was done")


def foretold(state: ClusterState, command: dict[str, Any]) -> str:
    """What the operation of a command would say at its end; exit status 1 or 2 if it would be refused."""
    parsed = from_json(state, command, SystemDraw())
    if isinstance(parsed, InvalidCommand):
        fail(parsed.code, parsed.detail, 2)
    decided = decide(state, parsed, Moment(state.epoch + 1, state.state_id, state.time))
    if not isinstance(decided, Accepted):
        fail(decided.code, decided.detail)
    return max(decided.state.operations.values(), key=lambda operation: operation.marks[0].epoch).reason
