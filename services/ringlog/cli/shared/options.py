"""Decorators that give commands the connection options and ``--json``.

A view command is a generator. It gets the cluster, yields the value that ``--json`` prints, and then prints the same
for people. With ``--json`` the generator is not resumed.
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
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.runtime.context import ClusterContext

Options = dict[str, tuple[Any, Any]]
"""(annotation, default) of options by name."""

ASKING: Options = {
    "bootstrap": (Bootstrap, None),
    "cluster": (Cluster, None),
    "as_json": (Json, False),
}
"""The options of nearly every command."""


def with_options(verb: Callable[..., Any], options: Options, perform: Callable[..., None]) -> Callable[..., None]:
    """Return ``verb`` as a command with additional options after its own.

    ``perform`` gets ``verb`` with its own options already bound, and the additional options by name. A first parameter
    of type ``ClusterContext`` is not an option: ``perform`` passes it.
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
    # Typer reads the signature to find the options of a command.
    vars(run)["__signature__"] = signature(run).replace(parameters=[*own, *added], return_annotation=None)
    return run


def view_command(verb: Callable[..., Iterator[Any]]) -> Callable[..., None]:
    """Decorate a generator that gets a cluster and shows one view of it."""
    return with_options(verb, ASKING, show_view)


def show_view(
    verb: Callable[[ClusterContext], Iterator[Any]], bootstrap: str | None, cluster: str | None, as_json: bool
) -> None:
    """Print the view of ``verb``, as JSON or for people."""
    for view in verb(resolve(bootstrap, cluster)):
        if as_json:
            typer.echo(json.dumps(view))
            return


def newest(context: ClusterContext) -> ClusterState:
    """Return the state that includes every entry in the log at the time of the call.

    A watch is enough to read: a client would also open the topics of requests and results. Raises the errors of
    ``MetadataWatch``.
    """
    place = context.bootstrap, context.cluster
    log, start_finder = open_metadata(*place, "cli"), start_point_finder(*place, warns=False)
    with MetadataWatch(*place, metadata=log, start_finder=start_finder, on_progress=report_replay) as watch:
        return watch.state
