"""``ringlog node leave|move|replace|remove|assassinate|rebuild``, and ``down|up|update|unregister``.

The movements of nodes that are members, each an operation that is watched to its end. Who comes from nodetool may type
``decommission`` and ``removenode``, too.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.following import ask, operation_command
from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, UnregisterNode, UpdateNode
from ringlog.operator.answers import InvalidIntent, dry_run
from ringlog.operator.errors import Refused
from ringlog.operator.intents import intents
from ringlog.operator.intents.intents import NUM_TOKENS, NUM_TOKENS_MAX, Intent, named
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.draw import SystemDraw

Node = Annotated[str, typer.Argument(help="Name or id of the node.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="NODE", help="Go on without this node, which was declared down; may be repeated."),
]


@operation_command
def leave(node: Node) -> Intent:
    """A node gives its ranges to the others and leaves for good (nodetool decommission)."""
    return named(Leave(node))


@operation_command
def move(
    node: Node,
    tokens: Annotated[
        list[int] | None, typer.Option("--token", help="A token that it owns afterwards; may be repeated.")
    ] = None,
    num_tokens: Annotated[
        int | None,
        typer.Option(
            help="Number of tokens to own afterwards, chosen so that the ring is balanced.", min=1, max=NUM_TOKENS_MAX
        ),
    ] = None,
) -> Intent:
    """A node exchanges its tokens for others (nodetool move, with any number of tokens)."""
    if (tokens is None) == (num_tokens is None):
        fail("bad_usage", "give either --token, once for each token, or --num-tokens", 2)
    return intents.move(node, tokens or num_tokens or ())


@operation_command
def join(
    node: Node,
    tokens: Annotated[
        list[int] | None, typer.Option("--token", help="A token that it asks for; may be repeated.")
    ] = None,
    num_tokens: Annotated[
        int, typer.Option(help="Number of tokens, chosen so that the ring is balanced.", min=1, max=NUM_TOKENS_MAX)
    ] = NUM_TOKENS,
) -> Intent:
    """A node that is registered and runs asks for tokens; `node run --join` does so by itself."""
    return intents.join(node, num_tokens if tokens is None else tokens)


@operation_command
def replace(
    node: Annotated[str, typer.Argument(help="The new node, registered and running, without tokens.")],
    replaced: Annotated[str, typer.Argument(help="The node whose tokens it takes over, in the same rack.")],
    ignore: Ignore = None,
) -> Intent:
    """A new node takes the place of one that is dead, or alive (replace_address_first_boot)."""
    return named(Replace(node, replaced, tuple(ignore or ())))


@operation_command
def remove(node: Node, ignore: Ignore = None) -> Intent:
    """The others take over the ranges of a node that was declared down (nodetool removenode)."""
    return named(Remove(node, tuple(ignore or ())))


def assassinate(
    node: Node,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Last resort: a node that was declared down is out at once, nothing is streamed, rows may be lost."""
    context = resolve(bootstrap, cluster)
    intent = named(Assassinate(node))
    if not yes:
        _confirm(context, node, intent)
    ask(context, intent, as_json)


@operation_command
def rebuild(
    node: Node,
    source_datacenter: Annotated[
        str, typer.Option("--from", metavar="DATACENTER", help="Stream from the replicas there only.")
    ] = "",
) -> Intent:
    """A node streams all its ranges anew from the other replicas; nobody's ranges change."""
    return named(Rebuild(node, source_datacenter))


@change_command
def down(node: Node, reason: Reason) -> Intent:
    """Declare that a node does not run. Nothing moves by this; it permits remove, ignore and assassinate."""
    return named(DeclareDown(node, reason))


@change_command
def up(node: Node, reason: Reason = "") -> Intent:
    """Declare that a node which was declared down runs again."""
    return named(DeclareUp(node, reason))


@change_command
def update(
    node: Node,
    address: Annotated[str | None, typer.Option(help="host:port of its own server.")] = None,
    release: Annotated[str | None, typer.Option(help="The release it runs.")] = None,
    features: Annotated[
        list[str] | None,
        typer.Option("--feature", help="A feature that it supports; name all of them, once each."),
    ] = None,
    no_features: Annotated[bool, typer.Option("--no-features", help="It supports none.")] = False,
    capacity: Annotated[int | None, typer.Option(help="Weight: with 2 it holds twice as much as with 1.")] = None,
    shards: Annotated[int | None, typer.Option(help="Its number of shards; only of a node without tokens.")] = None,
) -> Intent:
    """What a node said of itself is not so any more; what is not given stays."""
    if features and no_features:
        fail("bad_usage", "give either --feature, once for each, or --no-features", 2)
    supported = tuple(features) if features else () if no_features else None
    command = UpdateNode(node, address, release, supported, capacity, shards)
    return named(command)


@change_command
def unregister(node: Node) -> Intent:
    """A node that never joined is gone for good; its name and id stay taken."""
    return named(UnregisterNode(node))


def register(app: typer.Typer) -> None:
    """Add the commands to those of ``ringlog node``."""
    for command in (join, leave, move, replace, remove, assassinate, rebuild, down, up, update, unregister):
        app.command(command.__name__)(command)
    app.command("decommission", hidden=True)(leave)
    app.command("removenode", hidden=True)(remove)


def _confirm(context: ClusterContext, node: str, intent: Intent) -> None:
    """Say what would be lost, by trying it on the present state, and ask; exit status 1 without a yes."""
    with connect(context) as client:
        try:
            lost = dry_run(client.read_barrier(), intent, SystemDraw())
        except Refused as refused:
            fail(refused.code, str(refused), 2 if isinstance(refused, InvalidIntent) else 1)
    out.print(f"{node} would have left with one entry, which cannot be undone: {lost}", markup=False)
    if not sys.stdin.isatty():
        fail("not_confirmed", "give --yes to do it")
    if not typer.confirm("Do it?"):
        fail("not_confirmed", "nothing was done")
