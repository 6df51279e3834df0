"""The image is built, and the services of ``compose.yaml`` run from it: ``make containers``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers.podman import Containers, podman
from tests.waiting import until

pytestmark = pytest.mark.containers

SCHEMA = """
CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3};
CREATE TABLE shop.seats (seat text PRIMARY KEY, state text) WITH cdc = {'enabled': true};
"""
CONFINED = """
set -e
test "$(id -u)" = 10001
grep -q '^[^ ]* / [^ ]* ro,' /proc/mounts
grep -q '^NoNewPrivs:.1$' /proc/1/status
for kind in Inh Prm Eff Bnd Amb; do grep -q "^Cap$kind:.0000000000000000$" /proc/1/status; done
"""

ASK = """
import httpx
token = open("/var/lib/ringlog/tokens").read().split()[1]
with httpx.Client(base_url="https://127.0.0.1:8443", verify=False) as http:
    refused = http.get("/v1/health").status_code
    found = http.get("/v1/health", headers={"authorization": f"Bearer {token}"})
print(refused, found.status_code, found.json()["verdict"])
"""


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    found = Containers(f"ringlog-{os.getpid()}")
    try:
        yield found
    finally:
        found.close()


def test_the_label_names_the_base_by_digest(image: str) -> None:
    base = podman("image", "inspect", "--format", '{{index .Labels "ringlog.base"}}', image).stdout.strip()
    name, _, digest = base.partition("@sha256:")
    assert (bool(name), len(digest)) == (True, 64), base


def test_services_keep_everything_over_restarts(containers: Containers) -> None:
    def ringlog(*words: str, check: bool = True) -> str:
        ended = containers.run("coordinator", "ringlog", *words, check=check)
        return ended.stdout if ended.returncode == 0 else ""

    for name in containers.services:
        containers.start(name)
    until(lambda: ringlog("status", check=False).startswith("OK"), "the cluster to be healthy")
    assert ringlog("node", "list").count("normal") == 3
    for name in containers.services:
        if name != "found":
            containers.run(name, "sh", "-c", CONFINED)

    containers.wait("console", "service_healthy")
    assert containers.run("console", "python", "-c", ASK, check=False).stdout == "401 200 OK\n"

    containers.run("coordinator", "sh", "-c", f"ringlog ddl --wait <<'END'\n{SCHEMA}\nEND")
    ringlog("data", "put", "shop.seats", "1A", "--set", "state=sold")
    ringlog("data", "write", "shop", "gate", "B7")

    names = [containers.name(name) for name in ("node-2", "validator", "broker", "redis", "spark", "console")]
    podman("restart", "--time", "20", *names)

    def found() -> bool:
        rows = ringlog("data", "rows", "shop.seats", "1A", "--level", "ALL", check=False)
        return "sold" in rows and "B7" in ringlog("data", "read", "shop", "gate", "--level", "ALL", check=False)

    until(found, "all replicas to return the row and the register")
    containers.wait("console", "service_healthy")
    until(lambda: ringlog("data", "put", "shop.seats", "1B", "--set", "state=free", check=False), "a write")
    audit = ringlog("audit", "--written", "2", "--wait-seconds", "60", check=False)
    assert audit, containers.logs("spark")
    assert [name for name in containers.services if not containers.running(name)] == ["found"]
