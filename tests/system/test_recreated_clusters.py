"""One machine with two stacks, and a cluster that is created again with the name of a deleted one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.user import User

from ringlog.protocol.roles import ROLES

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def user(home: Path) -> Iterator[User]:
    """Return one user for all tests of this file, so a test finds the leftovers of the previous one."""
    somebody = User(home)
    try:
        yield somebody
    finally:
        somebody.end()
        for name in ("one", "two"):
            somebody.run("stack", "down", "--data", name)


def up(user: User, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(user.run("stack", "up", "--data", name, "--profile", "quick", "--json"))
    return found


def found(user: User, *options: str) -> str:
    return str(json.loads(user.run("cluster", "create", "shop", *options, "--json"))["cluster_id"])


@pytest.mark.soak("test_stack.py resets; tests/cli/test_contexts.py and tests/log/test_identity.py start over")
def test_after_a_reset_the_same_name_works_again(user: User, home: Path) -> None:
    broker = up(user, "one")["bootstrap_servers"]
    first = found(user, "--bootstrap", broker)
    user.begin("agents")
    user.join_node("--tokens", "2")
    user.end()
    remembered = [path for path in (home / "ringlog").rglob("*") if "shop" in str(path) and path.is_file()]
    assert remembered
    told = json.loads(user.run("stack", "reset", "--data", "one", "--yes", "--json"))
    assert told["clusters"] == [{"cluster": "shop", "cluster_id": first}]
    assert [path for path in remembered if path.exists()] == []
    user.run("cluster", "current", status=1)
    assert found(user, "--bootstrap", up(user, "one")["bootstrap_servers"]) != first
    user.begin("agents")
    user.join_node("--tokens", "2")
    shown = json.loads(user.run("status", "--json"))
    assert {agent["role"] for agent in shown["agents"]} == set(ROLES)
    user.end()


@pytest.mark.soak("tests/cli/test_contexts.py has two brokers, tests/cache/conformance.py two clusters of one name")
def test_clusters_of_one_name_on_two_stacks_are_kept_apart(user: User) -> None:
    one, two = up(user, "one"), up(user, "two")
    first = found(user, "--bootstrap", one["bootstrap_servers"])
    second = found(user, "--bootstrap", two["bootstrap_servers"])
    known = {c["cluster_id"]: c for c in json.loads(user.run("cluster", "list", "--json"))}
    assert [known[name]["redis"] for name in (first, second)] == [one["redis_url"], two["redis_url"]]
    user.run("node", "list", "--bootstrap", one["bootstrap_servers"])
    assert json.loads(user.run("cluster", "current", "--json"))["cluster_id"] == second, "a read is not a use"
    user.run("cluster", "use", "shop", status=1)
    user.run("cluster", "use", first)
    shown = json.loads(user.run("status", "--json"))
    assert (shown["cluster_id"], shown["bootstrap"]) == (first, one["bootstrap_servers"])
    assert f"broker {one['bootstrap_servers']}, set by the cluster in use" in user.run("status")
    user.run("stack", "down", "--data", "two")
    user.run("cluster", "use", second)
    user.run("node", "list", status=1)
    assert f"the broker was {two['bootstrap_servers']}, set by the cluster in use" in user.told
