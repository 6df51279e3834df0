"""``ringlog node leave|move|replace|remove|assassinate|rebuild`` and ``down|up|update|unregister``.

The first group starts operations, which are watched to their end. The names of nodetool, ``decommission`` and
``removenode``, are hidden aliases.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.shared.following import ask, destructive_operation, operation_command
from ringlog.cli.shared.submitting import Reason, Yes, change_command, confirm_name, destructive_command, is_interactive
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
    typer.Option("--ignore", metavar="NODE", help="Node that was declared down, to continue without. May be repeated."),
]


@operation_command
def leave(node: Node) -> Intent:
    """Decommission a node.

    It streams its ranges to the other nodes and leaves (nodetool decommission).
    """
    return named(Leave(node))


@operation_command
def move(
    node: Node,
    tokens: Annotated[list[int] | None, typer.Option("--token", help=help_texts.TOKEN)] = None,
    num_tokens: Annotated[
        int | None,
        typer.Option(help=help_texts.NUM_TOKENS, min=1, max=NUM_TOKENS_MAX),
    ] = None,
) -> Intent:
    """Change the tokens of a node.

    Like nodetool move, with any number of tokens.
    """
    if (tokens is None) == (num_tokens is None):
        fail("bad_usage", "pass either --token, once for each token, or --num-tokens", 2)
    return intents.move(node, tokens or num_tokens or ())


@operation_command
def join(
    node: Node,
    tokens: Annotated[list[int] | None, typer.Option("--token", help=help_texts.TOKEN)] = None,
    num_tokens: Annotated[int, typer.Option(help=help_texts.NUM_TOKENS, min=1, max=NUM_TOKENS_MAX)] = NUM_TOKENS,
) -> Intent:
    """Join a registered and running node.

    `node run --join` does this automatically.
    """
    return intents.join(node, num_tokens if tokens is None else tokens)


@operation_command
def replace(
    node: Annotated[str, typer.Argument(help="New node: registered, running, without tokens.")],
    replaced: Annotated[str, typer.Argument(help="Node to replace, in the same rack.")],
    ignore: Ignore = None,
) -> Intent:
    """Replace a node by a new one.

    The replaced node may be dead or alive (replace_address_first_boot).
    """
    return named(Replace(node, replaced, tuple(ignore or ())))


@destructive_operation
def remove(node: Node, ignore: Ignore = None) -> Intent:
    """Remove a node that was declared down.

    The other nodes take over its ranges (nodetool removenode).
    """
    return named(Remove(node, tuple(ignore or ())))


def assassinate(
    node: Node,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Remove a dead node without streaming its rows.

    This is the last resort, and rows may be lost. The node must be declared down.
    """
    context = resolve(bootstrap, cluster)
    intent = named(Assassinate(node))
    if not yes:
        _confirm(context, node, intent)
    ask(context, intent, as_json)


@operation_command
def rebuild(
    node: Node,
    source_datacenter: Annotated[
        str, typer.Option("--source-datacenter", "--from", help="Stream only from replicas in this datacenter.")
    ] = "",
) -> Intent:
    """Stream all ranges of a node again from other replicas.

    The ranges of all nodes stay the same.
    """
    return named(Rebuild(node, source_datacenter))


@change_command
def down(node: Node, reason: Reason) -> Intent:
    """Declare a node down.

    No range moves. The declaration permits remove, ignore and assassinate.
    """
    return named(DeclareDown(node, reason))


@change_command
def up(node: Node, reason: Reason = "") -> Intent:
    """Declare a node up again."""
    return named(DeclareUp(node, reason))


@change_command
def update(
    node: Node,
    address: Annotated[str | None, typer.Option(help="New address.")] = None,
    release: Annotated[str | None, typer.Option(help="Release that the node runs.")] = None,
    features: Annotated[
        list[str] | None,
        typer.Option("--feature", help="Supported feature. Repeat the option to name all of them."),
    ] = None,
    no_features: Annotated[bool, typer.Option("--no-features", help="The node supports no features.")] = False,
    capacity: Annotated[
        int | None, typer.Option(help="Weight of the node. A node with 2 gets twice the data of one with 1.")
    ] = None,
    shards: Annotated[int | None, typer.Option(help=help_texts.SHARDS)] = None,
) -> Intent:
    """Update a node's properties.

    Omitted properties keep their values. The number of shards can change only while the node has no tokens.
    """
    if features and no_features:
        fail("bad_usage", "pass either --feature, once for each, or --no-features", 2)
    supported = tuple(features) if features else () if no_features else None
    command = UpdateNode(node, address, release, supported, capacity, shards)
    return named(command)


@destructive_command
def unregister(node: Node) -> Intent:
    """Unregister a node that never joined.

    Its name and id cannot be used again.
    """
    return named(UnregisterNode(node))


def register(app: typer.Typer) -> None:
    """Add the commands to ``ringlog node``."""
    for command in (join, leave, move, replace, remove, assassinate, rebuild, down, up, update, unregister):
        app.command(command.__name__)(command)
    # Names of nodetool.
    app.command("decommission", hidden=True)(leave)
    app.command("removenode", hidden=True)(remove)


def _confirm(context: ClusterContext, node: str, intent: Intent) -> None:
    """Print the expected loss of a removal, computed on the current state, and ask; exit status 1 without a yes."""
    with connect(context) as client:
        try:
            lost = dry_run(client.read_barrier(), intent, SystemDraw())
        except Refused as refused:
            fail(refused.code, str(refused), 2 if isinstance(refused, InvalidIntent) else 1)
    text = f"{node} leaves with this entry: {lost}"
    if not is_interactive():
        out.print(text, markup=False)
        fail("not_confirmed", "pass --yes to confirm")
    confirm_name(node, [text])
