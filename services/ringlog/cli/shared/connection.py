"""The cluster and the console of a command.

The cluster comes from the options, then from ``RINGLOG_*`` variables, then from the cluster in use. ``ringlog cluster
create``, ``ringlog cluster use`` and ``ringlog demo`` put a cluster in use (``context.json`` of the data folder), so
that the next command needs no options. A command without any of these says what to type. One whose broker does not
answer names the broker and the source of its address. Broker, cache and log-in belong together: settings of one broker
are never used with another one.

``SafeConsole`` prints text of other users, nodes and brokers. An escape sequence in a name or message could set the
window's title, write to the clipboard or hide text. Rich removes a few control characters, not ESC. Each piece of text
is checked after layout, so no caller can forget it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ringlog.client.client import Client
from ringlog.kernel.values import Value, replace
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.diagnosis import connection_failure
from ringlog.log.opening import start_point_finder
from ringlog.log.replicas.replay import ProgressCallback, Replay
from ringlog.operator.views.words import printable
from ringlog.runtime.context import (
    ClusterContext,
    current_cluster,
    redis_of,
    stored_clusters,
    stored_id,
    use_stored_login,
    use_stored_trust,
)
from ringlog.runtime.json_errors import print_error, wants_json
from ringlog.runtime.kafka.config import VARIABLE, brokers_of_file
from ringlog.runtime.trust import ON_BEHALF_VARIABLE, REQUEST_KEY_VARIABLE, TRUST_VARIABLE
from ringlog.stack.commands import Stack, addresses, kafka_config_of_stack
from ringlog.stack.probes import takes_connections

if TYPE_CHECKING:
    from ringlog.runtime.settings import ProcessSettings


class SafeConsole(Console):
    """A console that replaces control characters in text; its own styles and cursor movements pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the pieces of a renderable with printable text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)


WIDE = 240
"""The width of a pipe or file in columns: enough that a table keeps all of its text."""


def width_of(is_terminal: bool) -> int | None:
    """Return the width of standard output, or None for the terminal's. ``COLUMNS`` also counts in a pipe."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and int(given) else None if is_terminal else WIDE


out = SafeConsole(highlight=False, markup=False, soft_wrap=True, width=width_of(sys.stdout.isatty()))
"""Markup is off, because addresses, reasons and names may contain brackets. ``Text`` sets styles."""
errors = SafeConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", envvar="RINGLOG_BOOTSTRAP_SERVERS", help="Kafka brokers.")
]
Cluster = Annotated[str | None, typer.Option("--cluster", envvar="RINGLOG_CLUSTER", help="Name of the cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


SECONDS_MAX = 1e9


def seconds_of(text: str) -> float:
    """Parse an option's number of seconds, from 0 to ``SECONDS_MAX``."""
    with suppress(ValueError):
        if 0 <= (found := float(text)) <= SECONDS_MAX:
            return found
    raise typer.BadParameter(f"{text[:40]!r} is not a number of seconds from 0 to {SECONDS_MAX:,.0f}")


TIMES = "a date and time in UTC (2026-11-30, 2026-11-30T12:00), or an age (90m, 36h, 30d)."
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def time_of(text: str) -> int:
    """Parse an option's point in time. Returns microseconds since 1970."""
    with suppress(ValueError, OverflowError):
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            return int((time.time() - int(text[:-1]) * _UNITS[text[-1]]) * 1e6)
        found = datetime.fromisoformat(text)
        return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1e6)
    raise typer.BadParameter(f"{text[:40]!r} is not {TIMES.removesuffix('.')}")


def fail(code: str, text: str, status: int = 1, ways_out: Sequence[str] = ()) -> NoReturn:
    """Print an error as ``code: text`` and its ways out, with ``--json`` as JSON; end with ``status``."""
    if wants_json():
        print_error(code, text, ways_out)
    else:
        errors.print(Text.assemble((code, "red"), f": {text}"))
        for way in ways_out:
            errors.print(way, markup=False)
    print_broker(code)
    raise typer.Exit(status)


class BrokerAddress(Value):
    """The address of a command's broker. ``origin``: the source of the address, for messages."""

    bootstrap: str
    redis: str
    origin: str


QUIET_S = 3.0
"""Seconds without output on a terminal before an unreachable broker is reported."""

_brokers_used: list[BrokerAddress] = []
"""The broker of this command, as soon as it is known."""
_clusters_used: list[str] = []
"""The cluster name of this command, as soon as it is known."""

ABOUT_BROKERS = frozenset(
    {
        "client_broken",
        "log_damaged",
        "log_forked",
        "log_gap",
        "log_passed",
        "log_replaced",
        "log_truncated",
        "log_unavailable",
        "login_refused",
        "not_founded",
        "topic_misconfigured",
        "topic_missing",
        "wait_timed_out",
    }
)
"""Codes of errors after which the broker's address is printed."""
UNANSWERED = frozenset({"log_unavailable", "wait_timed_out"})
"""Codes of errors that a broker which does not answer can cause."""


def used_broker() -> BrokerAddress | None:
    """Return the broker that this command used, or None."""
    return _brokers_used[-1] if _brokers_used else None


def used_cluster() -> str | None:
    """Return the name of this command's cluster, or None."""
    return _clusters_used[-1] if _clusters_used else None


def print_broker(code: str) -> None:
    """Print the broker after an error with this code, if the broker may be the cause."""
    broker = used_broker()
    if code in ABOUT_BROKERS and broker is not None:
        errors.print(f"the broker was {broker.bootstrap}, set by {broker.origin}", markup=False)
        if code in UNANSWERED and (why := connection_failure(broker.bootstrap)):
            errors.print(f"cause: {why}", markup=False)
            for running in addresses():
                if running.bootstrap != broker.bootstrap:
                    errors.print(
                        f"a stack of yours runs at another address: --bootstrap {running.bootstrap}", markup=False
                    )


def with_way_out(error: BaseException) -> BaseException:
    """Return the error, with the way out that fits this command's cluster if the error is that its log is missing.

    A lost log is rebuilt. A cluster that was never created is created.
    """
    broker = used_broker()
    if (
        not isinstance(error, TopicMissing)
        or broker is None
        or not _clusters_used
        or error.topic != f"{_clusters_used[-1]}.metadata"
    ):
        return error
    cluster = _clusters_used[-1]
    if cluster_id := stored_id(broker.bootstrap, cluster):
        hint = f"the cluster {cluster} with the id {cluster_id} has lost its log. Rebuild it: ringlog recover PLACE"
    else:
        hint = f"the broker has no cluster {cluster}. Create it: ringlog cluster create {cluster}"
    return TopicMissing(error.topic, hint)


def broker_of(bootstrap: str | None) -> BrokerAddress:
    """Return the broker: the given one, else the one of the login file, the cluster in use, or the running local stack.

    Its login and its own cache are used from now on.
    """
    found = _broker_of(bootstrap)
    found = replace(found, bootstrap=known_spelling(found.bootstrap))
    use_stored_login(found.bootstrap, kafka_config_of_stack(found.bootstrap))
    given = os.environ.get("RINGLOG_REDIS_URL")
    found = replace(found, redis=given if given is not None else found.redis or cache_of(found.bootstrap))
    if errors.is_terminal and not _brokers_used:
        soon = threading.Timer(QUIET_S, report_unreachable, (found,))
        soon.daemon = True
        soon.start()
    _brokers_used.append(found)
    return found


def known_spelling(bootstrap: str) -> str:
    """Return the broker list as a context or a stack of this user spells it; as given if none has these brokers.

    Log-in, cache, trust and id belong to a broker list as it was stored. ``localhost`` and ``127.0.0.1`` are the same
    host, and the order of brokers has no meaning.
    """

    def brokers(text: str) -> frozenset[str]:
        each = (address.strip().lower() for address in text.split(","))
        return frozenset(re.sub("^localhost:", "127.0.0.1:", one) for one in each)

    known = [context.bootstrap for context in stored_clusters().clusters]
    if bootstrap not in known:
        known += [address.bootstrap for address in addresses()]
    same = [one for one in known if brokers(one) == brokers(bootstrap)]
    return bootstrap if bootstrap in same or not same else same[-1]


def report_unreachable(broker: BrokerAddress) -> None:
    """Print that the command waits, if none of the broker's addresses accepts connections."""
    places = [address.strip().rpartition(":") for address in broker.bootstrap.split(",")]
    if not any(port.isdecimal() and takes_connections(host.strip("[]"), int(port)) for host, _, port in places):
        why = "no process listens there (Ctrl-C stops)"
        text = f"waiting for the broker {broker.bootstrap}, set by {broker.origin}: {why}"
        errors.print(text, style="dim", markup=False)


def _broker_of(bootstrap: str | None) -> BrokerAddress:
    if bootstrap is not None:
        from_variable = os.environ.get("RINGLOG_BOOTSTRAP_SERVERS") == bootstrap
        return BrokerAddress(bootstrap, "", "RINGLOG_BOOTSTRAP_SERVERS" if from_variable else "--bootstrap")
    if brokers := brokers_of_file():
        return BrokerAddress(brokers, "", f"bootstrap.servers of {os.environ[VARIABLE]}")
    last = current_cluster()
    if last is not None:
        return BrokerAddress(last.bootstrap, last.redis, "the cluster in use (see: ringlog cluster list)")
    address = Stack().address()
    if address is None:
        fail("no_broker", "pass --bootstrap, or start a broker on this machine: ringlog stack up")
    return BrokerAddress(address.bootstrap, address.redis, "the stack of this machine (see: ringlog stack status)")


def cache_of(bootstrap: str) -> str:
    """Return the Redis of a broker, from its stack or the stored clusters; empty if none is known."""
    return next((one.redis for one in addresses() if one.bootstrap == bootstrap), "") or redis_of(bootstrap)


def resolve(bootstrap: str | None, cluster: str | None) -> ClusterContext:
    """Return the cluster that the options of a command select."""
    broker = broker_of(bootstrap)
    last = current_cluster()
    name = cluster or (last.cluster if last else None)
    if name is None:
        fail("no_cluster", "pass --cluster, or create a cluster: ringlog cluster create NAME")
    _clusters_used.append(name)
    use_stored_trust(broker.bootstrap, name)
    variables = {"kafka_config": VARIABLE, "trust_config": TRUST_VARIABLE, "request_key": REQUEST_KEY_VARIABLE}
    files = {name: os.environ.get(variable, "") for name, variable in variables.items()}
    return ClusterContext(broker.bootstrap, name, broker.redis, **files)


def report_replay(replay: Replay) -> None:
    """Print the progress of a long replay to standard error, because standard output has only the answer."""
    errors.print(str(replay), style="dim", markup=False)


def connect(
    context: ClusterContext,
    submitter: str = "cli",
    on_progress: ProgressCallback = report_replay,
    is_relaxed: bool = False,
) -> Client:
    """Return a client of the cluster, to be used as a context manager. ``is_relaxed``: see ``Client``."""
    start_finder = start_point_finder(context.bootstrap, context.cluster, warns=False)
    place = context.bootstrap, context.cluster
    on_behalf = os.environ.get(ON_BEHALF_VARIABLE, "")
    return Client(
        *place,
        submitter,
        on_progress=on_progress,
        start_finder=start_finder,
        is_relaxed=is_relaxed,
        on_behalf=on_behalf,
    )


def process_settings(context: ClusterContext) -> ProcessSettings:
    """Return the settings of a long-running process.

    The environment is set as well, for the processes that it starts.
    """
    from ringlog.runtime.settings import ProcessSettings

    os.environ["RINGLOG_BOOTSTRAP_SERVERS"] = context.bootstrap
    os.environ["RINGLOG_CLUSTER"] = context.cluster
    if context.redis:
        os.environ["RINGLOG_REDIS_URL"] = context.redis
    return ProcessSettings()
