"""``ringlog doctor`` on a real cluster: each defect is found, and the printed remedy ends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.system.agents_world import AgentsWorld, until
from tests.system.topic_settings import alter

from ringlog.log.kafka.topics import METADATA, admin_client, topic_name
from ringlog.operator.doctor import CHECKS
from ringlog.protocol.roles import ROLES


def doctor(world: AgentsWorld) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status and the worst finding of each check."""
    ended = world.typed("doctor", "-o", "json")
    found: dict[str, dict[str, Any]] = {}
    for one in json.loads(ended.stdout)["findings"]:
        if one["check"] not in found or one["verdict"] == "fail":
            found[one["check"]] = one
    return ended.exit_code, found


def health(world: AgentsWorld) -> tuple[int, str]:
    """Return exit status and level."""
    ended = world.typed("health", "--json")
    return ended.exit_code, str(json.loads(ended.stdout)["level"])


@pytest.mark.system
def test_what_is_missing_is_found_and_the_remedy_ends_it(world: AgentsWorld) -> None:
    status, found = doctor(world)
    assert list(found) == list(CHECKS)
    assert (status, found["agents"]["verdict"], found["topics"]["verdict"]) == (1, "fail", "ok")
    assert all(role in found["agents"]["text"] for role in ROLES)
    assert health(world) == (2, "CRITICAL")
    world.start_all(*ROLES)
    assert until(lambda: doctor(world)[1]["agents"]["verdict"] == "ok", "agents at work")
    assert until(lambda: health(world) == (0, "OK"), "a healthy cluster")
    world.done("pause", "balancing", "--reason", "test")
    assert health(world) == (1, "WARN")
    world.done("resume", "balancing")

    topic = topic_name(world.cluster, METADATA.suffix)
    alter(admin_client(world.stack.bootstrap_servers), topic, "retention.ms", "1000")
    status, found = doctor(world)
    assert (status, found["topics"]["verdict"]) == (1, "fail")
    assert "retention.ms" in found["topics"]["text"]
    assert any("ringlog cluster repair-topics" in fix for fix in found["topics"]["fixes"])
    world.done("cluster", "repair-topics")
    assert doctor(world)[1]["topics"]["verdict"] == "ok"
