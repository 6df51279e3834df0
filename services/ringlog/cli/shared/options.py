"""Decorators that give commands the connection options, ``--json``, ``--output`` and ``--watch``.

A view command is a generator. It gets the cluster, yields the value that ``--json`` prints, and then prints the same
for people. With ``--json`` the generator is not resumed. ``--watch`` runs it again: on a terminal after each epoch and
every two seconds, because ages and lags change without an epoch; otherwise after each epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final, Literal

import typer

from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, out, report_replay, resolve
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import WaitTimedOut
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.runtime.context import ClusterContext

Options = dict[str, tuple[Any, Any]]
"""(annotation, default) of options by name."""

Format = Literal["table", "wide", "json", "yaml"]
Output = Annotated[Format, typer.Option("--output", "-o", help="Format. wide: all columns in full.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Print again after each change, until Ctrl-C.")]
REDRAW_S: Final = 2.0
SILENT_S: Final = 3_600.0
UNLIMITED: Final = 10_000
"""Characters in a line of ``-o wide``."""

ASKING: Options = {
    "bootstrap": (Bootstrap, None),
    "cluster": (Cluster, None),
    "as_json": (Json, False),
}
"""The options of nearly every command."""


VIEWING: Options = ASKING | {"output": (Output, "table"), "watch": (Watch, False)}


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
    return with_options(verb, VIEWING, show_view)


def show_view(
    verb: Callable[[ClusterContext], Iterator[Any]],
    bootstrap: str | None,
    cluster: str | None,
    as_json: bool,
    output: Format = "table",
    watch: bool = False,
) -> None:
    """Print the view of ``verb``, as JSON or for people."""
    context, form = resolve(bootstrap, cluster), form_of(as_json, output)
    if not watch:
        _print_view(verb(context), form)
        return
    is_redrawn = out.is_terminal and form in ("table", "wide")
    with _watching(context) as watched:
        while True:
            epoch = watched.state.epoch  # read first: a change meanwhile is printed twice, never missed
            if is_redrawn:
                with out.capture() as drawn:
                    _print_view(verb(context), form)
                out.clear()
                out.file.write(drawn.get())
                out.file.flush()
            else:
                _print_view(verb(context), form)
            with suppress(WaitTimedOut):
                watched.wait_for(partial(newer, epoch), REDRAW_S if is_redrawn else SILENT_S, "a new epoch")


def _print_view(views: Iterator[Any], form: str) -> None:
    for view in views:
        if print_value(view, form):
            return


def form_of(as_json: bool, output: Format) -> Format:
    """Return the form of a command's output. With ``wide``, lines become as long as they need."""
    if output == "wide" and not as_json:
        out.width = UNLIMITED
    return "json" if as_json else output


def print_value(value: Any, form: str) -> bool:
    """Print a value as JSON or YAML. Return False for the other forms, which are for people."""
    if form == "json":
        typer.echo(json.dumps(value))
    elif form == "yaml":
        import yaml  # slow to load

        typer.echo(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True), nl=False)
    return form in ("json", "yaml")


def newer(seen: int, state: ClusterState) -> bool | None:
    """Return True for a state with a later epoch than ``seen``, else None to continue to wait."""
    return state.epoch > seen or None


_watches: list[MetadataWatch] = []
"""The watch of this command, while it repeats a view."""


@contextmanager
def _watching(context: ClusterContext) -> Iterator[MetadataWatch]:
    place = context.bootstrap, context.cluster
    log, start_finder = open_metadata(*place, "cli"), start_point_finder(*place, warns=False)
    with MetadataWatch(*place, metadata=log, start_finder=start_finder, on_progress=report_replay) as watch:
        _watches.append(watch)
        try:
            yield watch
        finally:
            _watches.remove(watch)


def newest(context: ClusterContext) -> ClusterState:
    """Return the state that includes every entry in the log at the time of the call.

    A watch is enough to read: a client would also open the topics of requests and results. Raises the errors of
    ``MetadataWatch``.
    """
    if _watches:
        return _watches[-1].read_barrier()
    with _watching(context) as watch:
        return watch.state
