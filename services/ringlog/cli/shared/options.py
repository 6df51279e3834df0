"""What the verbs of the program share: the options that name a cluster, and how one shows what it has looked at.

A verb that looks is a generator. It gets the cluster, yields what ``--json`` prints, and prints the same for people
afterwards: with ``--json`` it is not gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, report_replay, resolve
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.model.state import ClusterState
from ringlog.log.opening import beginning_of, open_metadata
from ringlog.runtime.context import ClusterContext

Options = dict[str, tuple[Any, Any]]
"""Options of a verb by name: annotation and default."""

ASKING: Options = {
    "bootstrap": (Bootstrap, None),
    "cluster": (Cluster, None),
    "as_json": (Json, False),
}
"""The options of nearly every verb."""


def with_options(verb: Callable[..., Any], options: Options, perform: Callable[..., None]) -> Callable[..., None]:
    """``verb`` with more options, behind its own. ``perform`` gets the verb, with its own options filled in, and the
    others by their names; what the verb has before its own options, which are no options of typer, it still lacks.
    """

    @wraps(verb)
    def run(**given: Any) -> None:
        values = {name: given.pop(name) for name in options}
        perform(partial(verb, **given), **values)

    own = [one for one in signature(verb, eval_str=True).parameters.values() if one.annotation is not ClusterContext]
    added = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    )
    vars(run)["__signature__"] = signature(run).replace(parameters=[*own, *added], return_annotation=None)
    return run


def view_command(verb: Callable[..., Iterator[Any]]) -> Callable[..., None]:
    """A verb that looks at the cluster that it gets first, and shows one view."""
    return with_options(verb, ASKING, show_view)


def show_view(
    verb: Callable[[ClusterContext], Iterator[Any]], bootstrap: str | None, cluster: str | None, as_json: bool
) -> None:
    """Show what ``verb`` sees."""
    for view in verb(resolve(bootstrap, cluster)):
        if as_json:
            typer.echo(json.dumps(view))
            return


def newest(context: ClusterContext) -> ClusterState:
    """The state behind everything that was in the log when it was asked for. Who only looks needs no client, which
    would open the topics of requests and results, too. Raises what a watch raises.
    """
    place = context.bootstrap, context.cluster
    log, beginning = open_metadata(*place, "cli"), beginning_of(*place, warns=False)
    with MetadataWatch(*place, metadata=log, beginning=beginning, tell=report_replay) as watch:
        return watch.state
