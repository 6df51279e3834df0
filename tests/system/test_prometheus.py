"""A real Prometheus with the rules of ``compose/watch`` scrapes real agents and a node, and its alerts follow them.

The test changes only addresses and times of the operator's files: it scrapes and evaluates each second, no alert waits,
and a writer is late after five seconds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import Producer
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import NodesWorld
from tests.tidy.files import ROOT

from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.log.kafka.topics import MUTATIONS, topic_name
from ringlog.runtime.kafka.config import connection
from ringlog.stack import StackInfo
from ringlog.stack.processes import HOST, choose

pytestmark = [pytest.mark.system, pytest.mark.slow]

WATCH = ROOT / "compose" / "watch"
LAG = "ringlog_cdc_writers_behind_seconds"
ROLES = "validator", "coordinator", "publisher"


class Prometheus:
    """The server, on its own port, with its scrape targets: job to ports."""

    def __init__(self, folder: Path, jobs: dict[str, list[int]]) -> None:
        (port,) = choose(1)
        self._url = f"http://{HOST}:{port}/api/v1"
        config = yaml.safe_load((WATCH / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"{HOST}:{one}" for one in jobs.get(job["job_name"], [])]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        rules = (WATCH / "rules.yml").read_text(encoding="utf-8")
        rules = re.sub(r"(?m)^( +for:) .*$", r"\1 0s", rules).replace(f"{LAG} > 900", f"{LAG} > 5")
        (folder / "rules.yml").write_text(rules, encoding="utf-8")
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [*command, f"--web.listen-address={HOST}:{port}"], stdout=self._log, stderr=subprocess.STDOUT
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def asked(self, path: str, **parameters: str) -> Any:
        """Return the answer; None while the server is not up."""
        try:
            answer = httpx.get(f"{self._url}/{path}", params=parameters, timeout=30)
        except httpx.HTTPError:
            return None
        return answer.json()["data"] if answer.status_code == httpx.codes.OK else None

    def values(self, query: str, label: str) -> dict[str, float]:
        found = self.asked("query", query=query) or {"result": []}
        return {one["metric"].get(label, ""): float(one["value"][1]) for one in found["result"]}

    def firing(self) -> set[tuple[str, str]]:
        """Return (alert, role or node)."""
        found = self.asked("alerts") or {"alerts": []}
        labels = [one["labels"] for one in found["alerts"] if one["state"] == "firing"]
        return {(one["alertname"], one.get("role", one.get("node", ""))) for one in labels}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus on this machine: install the package of that name")
    return tmp_path


def test_alerts_follow_processes(stack: StackInfo, cluster_name: str, folder: Path) -> None:
    ports = dict(zip(ROLES, choose(len(ROLES)), strict=True))
    agents = AgentsWorld(stack, cluster_name, folder)
    for role, port in ports.items():
        agents.environment["RINGLOG_METRICS_PORT"] = str(port)
        agents.start(role)
    world = NodesWorld(agents, folder)
    prometheus = None
    try:
        node_port = choose(1)[0]
        world.begin("n1", port=node_port)
        world.await_normal("n1")
        (folder / "watch").mkdir()
        jobs = {"ringlog-agents": list(ports.values()), "ringlog-nodes": [node_port]}
        prometheus = Prometheus(folder / "watch", jobs)
        until(lambda: prometheus.values("ringlog_agent_ready", "role") == dict.fromkeys(ROLES, 1.0), "all to be ready")
        until(lambda: prometheus.values("ringlog_node_ready", "node") == {"n1": 1.0}, "the node to be ready")
        groups = until(lambda: (prometheus.asked("rules") or {}).get("groups"), "the rules to be loaded")
        rules = [rule for group in groups for rule in group["rules"]]
        wanted = yaml.safe_load((WATCH / "rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
        assert {rule["name"] for rule in rules} >= {rule["alert"] for rule in wanted}
        until(
            lambda: all(
                rule["health"] == "ok"
                for group in (prometheus.asked("rules") or {"groups": [{"rules": [{"health": ""}]}]})["groups"]
                for rule in group["rules"]
            ),
            "every rule to be evaluated without an error",
        )
        pages = {("RinglogDown", ""), ("RinglogNodeNotReady", "n1"), ("RinglogLogHalted", "n1")}
        until(lambda: not pages & prometheus.firing(), "no alert")

        behind = "RinglogWriterBehind", "coordinator"
        mutations = topic_name(cluster_name, MUTATIONS.suffix)
        world.submit(RegisterCdcWriter("gone", "i1", mutations))
        until(lambda: prometheus.values(LAG, "role") == {"coordinator": 0.0}, "the lag of an idle writer")
        assert behind not in prometheus.firing()
        producer = Producer(connection(stack.bootstrap_servers))
        producer.produce(mutations, b"no writer handles it", partition=0)
        assert producer.flush(60) == 0
        until(lambda: behind in prometheus.firing(), "the alert about a writer without a job")

        agents.running("validator").kill()
        world.nodes["n1"].kill()
        until(lambda: ("RinglogDown", "") in prometheus.firing(), "the alert that something is down")
        until(lambda: set(prometheus.values('up{job=~"ringlog.*"} == 0', "job")) == set(jobs), "both to be down")
        agents.environment["RINGLOG_METRICS_PORT"] = str(ports["validator"])
        agents.start("validator")
        world.nodes["n1"].restart()
        until(lambda: ("RinglogDown", "") not in prometheus.firing(), "the alert to end")
    finally:
        if prometheus is not None:
            prometheus.close()
        world.close()
