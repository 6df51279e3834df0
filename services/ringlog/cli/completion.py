"""Completion of names on the command line: clusters, nodes, operations, keyspaces, tables, zones.

A shell runs the program at each TAB, so the answer must be quick and silent. Names of clusters come from the stored
contexts, all others from the cache in Redis. The broker is never asked, and no sub-command is loaded: that alone takes
longer than a user waits. Without a reachable Redis only clusters have names. Typer completes the rest.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

from ringlog.cache.redis_url import redis_address
from ringlog.runtime.context import ClusterContext, stored_clusters

VARIABLE: Final = "_RINGLOG_COMPLETE"
"""Typer's scripts set it to ``complete_`` and the name of the shell."""
ASK_S: Final = 0.2
"""Seconds that Redis has to answer."""
SAFE: Final = re.compile(r"[\w.@:-]+", re.ASCII)
"""Names with other characters are not offered: a shell would give them a meaning."""
CLUSTER, NODE, OPERATION, KEYSPACE, TABLE, ZONE = "cluster", "node", "operation", "keyspace", "table", "zone"
NODE_VERBS: Final = (
    *("join", "leave", "move", "remove", "assassinate", "rebuild"),
    *("down", "up", "update", "unregister", "decommission", "removenode", "show"),
)
ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = (
    dict.fromkeys(("cluster use", "context use", "cluster forget", "cluster delete"), (CLUSTER,))
    | dict.fromkeys((f"node {verb}" for verb in NODE_VERBS), (NODE,))
    | {"node replace": (NODE, NODE), "service add": (NODE,), "service remove": (NODE,)}
    | {f"operation {verb}": (OPERATION,) for verb in ("list", "show", "cancel", "fail", "retry")}
    | dict.fromkeys(
        ("keyspace alter", "keyspace drop", "keyspace placements", "keyspace show", "schema describe"), (KEYSPACE,)
    )
    | {f"data {verb}": (KEYSPACE,) for verb in ("read", "write", "delete")}
    | dict.fromkeys(("table drop", "table show", "data rows", "data put", "cdc tail"), (TABLE,))
    | {f"tablet {verb}": (TABLE,) for verb in ("list", "show", "move", "split", "merge", "repair", "explain")}
    | {f"zone {verb}": (ZONE,) for verb in ("alter", "drop", "show", "plan", "rebalance", "reset", "restart", "cancel")}
)
"""The kinds of names that the first arguments of a command expect."""
OPTIONS: Final[Mapping[str, str]] = {"--cluster": CLUSTER, "--ignore": NODE, "--node": NODE, "--table": TABLE}
FLAGS: Final = frozenset(
    {"--admit-loss", "--all", "--delete", "--dry-run", "--force", "--hex", "--json"}
    | {"--no-features", "--no-wait", "--skip-lost", "--stop", "--until-end", "--wait", "--watch", "--yes", "-w"}
)
"""Options without a value, of the commands in ``ARGUMENTS``."""
PARTS: Final = {NODE: "nodes", OPERATION: "operations", KEYSPACE: "keyspaces", TABLE: "tables", ZONE: "zones"}


def complete() -> bool:
    """Print the names for the word at the cursor; False if it is a command or an option, which typer completes."""
    shells: Any = import_module("typer._completion_classes")  # typer exports none of them
    shell = os.environ[VARIABLE].removeprefix("complete_").capitalize()
    completion: Any = getattr(shells, f"{shell}Complete")(None, {}, "ringlog", VARIABLE)
    words, begin = completion.get_completion_args()
    found = names(words, begin)
    if found is None:
        return False
    vars(completion)["get_completions"] = lambda *_: [shells.CompletionItem(name) for name in found]
    sys.stdout.write(f"{completion.complete()}\n")
    return True


def names(words: Sequence[str], begin: str) -> list[str] | None:
    """Return the names that begin so, after these words of the command line; None if no name is expected there."""
    kind = _kind(words, begin)
    if kind is None:
        return None
    known = [context.cluster for context in stored_clusters().clusters] if kind == CLUSTER else _cached(kind, words)
    return sorted({name for name in known if name.startswith(begin) and SAFE.fullmatch(name)})


def _kind(words: Sequence[str], begin: str) -> str | None:
    if words and words[-1] in OPTIONS:
        return OPTIONS[words[-1]]
    if begin.startswith("-"):
        return None
    given, is_value = list[str](), False
    for word in words:
        is_option = word.startswith("-") and not is_value
        given += [] if is_option or is_value else [word]
        is_value = is_option and word not in FLAGS and "=" not in word
    expected = ("", "", *ARGUMENTS.get(" ".join(given[:2]), ()))
    return None if is_value or len(given) >= len(expected) else expected[len(given)] or None


def _cached(kind: str, words: Sequence[str]) -> Iterable[str]:
    """Return the names of this kind in the cache of the cluster that the command line means."""
    given = dict(pairwise(words))
    cluster = given.get("--cluster") or os.environ.get("RINGLOG_CLUSTER")
    bootstrap = given.get("--bootstrap") or os.environ.get("RINGLOG_BOOTSTRAP_SERVERS")
    stored = stored_clusters()
    by_use = sorted(stored.clusters, key=lambda one: one != stored.current)
    fitting = [one for one in by_use if cluster in (None, one.cluster) and bootstrap in (None, one.bootstrap)]
    context = fitting[0] if fitting else ClusterContext("", cluster or "", "")
    url = os.environ.get("RINGLOG_REDIS_URL", context.redis)
    return _in_time(lambda: _ask(url, context, kind)) if url and context.cluster else ()


def _ask(url: str, context: ClusterContext, kind: str) -> list[str]:
    import redis  # slow to load

    address = redis_address(url)
    options: dict[str, Any] = {"socket_timeout": ASK_S, "socket_connect_timeout": ASK_S, "decode_responses": True}
    options |= address.options
    if address.path:
        client = redis.Redis(unix_socket_path=address.path, **options)
    else:
        client = redis.Redis(*address.hosts[0], ssl=address.encrypted, **options)
    key = f"{{{context.cluster}}}:"
    if context.cluster_id not in ("", client.hget(f"{key}meta", "cluster_id")):
        return []
    if kind == NODE:
        return [json.loads(value)["name"] for value in client.hvals(f"{key}nodes")]
    return list(map(str, client.hkeys(key + PARTS[kind])))


def _in_time(question: Callable[[], list[str]]) -> list[str]:
    """Return the answer; nothing if it fails or takes too long, as a look-up of a host's name may."""
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(question())
        except Exception:
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(2 * ASK_S)
    return list(found)
