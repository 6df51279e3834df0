"""The pytest plug-in ``ringlog``: fixtures for tests of programs that use Ringlog.

``ringlog_cluster`` is a cluster in memory, new for each test. ``ringlog_stack`` is a real broker and Redis, one for the
run, in a temporary folder. Its tests are skipped with the reason if the stack cannot start, for example without Java.

Invariants:

- pytest imports this module in each run of an environment with Ringlog. It therefore imports the implementation only
  in the fixtures.
- The names of the fixtures begin with ``ringlog_``, so they collide with none of the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ringlog.stack import StackInfo
    from ringlog_testing.cluster.cluster import FakeCluster


@pytest.fixture
def ringlog_cluster() -> FakeCluster:
    """Return a new cluster in memory, without nodes.

    Example::

        def test_my_program(ringlog_cluster):
            ringlog_cluster.add_nodes(3)
            with ringlog_cluster.client("my-program") as client:
                ...

    Its clock moves only in ``settle`` and ``advance``, so the test never sleeps.
    """
    from ringlog_testing.cluster.cluster import FakeCluster

    return FakeCluster()


@pytest.fixture(scope="session")
def ringlog_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    """Return the addresses of a real broker and Redis of this run, and stop both at its end.

    Tests share them. Use a different cluster name in each test.
    """
    from ringlog.stack import Stack
    from ringlog.stack.errors import StackError

    stack = Stack(tmp_path_factory.mktemp("ringlog"))
    try:
        info = stack.up("quick")
    except StackError as error:
        pytest.skip(f"the local stack does not start: {error}")
    try:
        yield info
    finally:
        stack.down()
