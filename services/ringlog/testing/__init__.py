"""Tools for tests of programs that use Ringlog. Each name is imported when it is first used.

    from ringlog.testing import FakeCluster

The package ``ringlog_testing`` contains the implementation. No other module of ``ringlog`` refers to it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringlog.extras import explained

if TYPE_CHECKING:
    from ringlog_testing.cluster.cluster import FakeCluster as FakeCluster
    from ringlog_testing.requests import ScriptedReplicas as ScriptedReplicas
    from ringlog_testing.requests import ScriptedReply as ScriptedReply

__all__ = ["FakeCluster", "ScriptedReplicas", "ScriptedReply"]

_HOMES = {"FakeCluster": "ringlog_testing.cluster.cluster"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module ringlog.testing has no attribute {name!r}")
    with explained():
        return getattr(import_module(_HOMES.get(name, "ringlog_testing.requests")), name)
