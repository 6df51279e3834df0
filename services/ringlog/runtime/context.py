"""The cluster used last, remembered so that the next command needs no options.

``ringlog demo`` and ``ringlog cluster found`` write ``context.json`` in the data folder; whatever is given by
option or by a ``RINGLOG_*`` variable goes before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlog.runtime.settings import default_data_dir


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster and where its broker (``host:port,…``) and its cache (a Redis URL, may be empty) are."""

    bootstrap: str
    cluster: str
    redis: str


def _path() -> Path:
    return default_data_dir() / "context.json"


def remember(context: Context) -> None:
    """Make this cluster the one that later commands use."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(context), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def recall() -> Context | None:
    """The cluster used last, if that is known and readable."""
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
        return Context(str(found["bootstrap"]), str(found["cluster"]), str(found["redis"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
