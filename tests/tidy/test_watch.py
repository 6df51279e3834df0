"""The files for Prometheus and Grafana match the served metrics: names, labels, addresses, sections of the guides."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ringlog.agents.monitoring.health_view import STATES
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.protocol.coordinator.waits import WAITS
from ringlog.protocol.roles import ROLES
from ringlog.runtime.monitoring.metrics import ALL_METRICS
from tests.stack import dashboard
from tests.tidy.files import ROOT
from tests.tidy.markdown import anchors

WATCH = ROOT / "compose" / "watch"
NAMES = re.compile(r"\bringlog_[a-z_]+")
SELECTED = re.compile(r"\b(ringlog_[a-z_]+)\{([a-z_]+)(=~?)\"([^\"]*)\"\}")
SERVED = {name: figure for figure in ALL_METRICS.values() for name in figure.served}
OF_PROCESSES = ("role", "node", "instance", "job")
VALUES = {
    "state": set(STATES),
    "waits_for": set(WAITS),
    "role": set(ROLES),
    "outcome": {kind.value for kind in OutcomeKind},
}


def loaded(name: str) -> Any:
    return yaml.safe_load((WATCH / name).read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in loaded("rules.yml")["groups"] for rule in group["rules"]]


def panels(name: str) -> list[dict[str, Any]]:
    found = json.loads((WATCH / name).read_text(encoding="utf-8"))["panels"]
    assert isinstance(found, list)
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Yield pairs of (owner, expression)."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in (*panels("dashboard.json"), *panels("metrics.json")):
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


def test_every_query_uses_served_metrics() -> None:
    asked = [(whose, name) for whose, query in queries() for name in NAMES.findall(query)]
    assert len(asked) > 60
    assert [one for one in asked if one[1] not in SERVED] == []


def test_every_query_uses_existing_labels_and_values() -> None:
    for whose, query in queries():
        for name, label, _, wanted in SELECTED.findall(query):
            assert label in (*SERVED[name].labels, *OF_PROCESSES), whose
            assert set(wanted.split("|")) <= VALUES[label], whose


def test_every_alert_has_an_action_and_a_guide() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        about = rule["annotations"]
        assert about["summary"].endswith("."), rule["alert"]
        assert len(about["todo"]) > 20, rule["alert"]
        path, _, anchor = about["guide"].partition("#")
        assert anchor in anchors((ROOT / path).read_text(encoding="utf-8")), about["guide"]
        assert rule["labels"]["severity"] in ("page", "warn")
        labels = {name for figure in NAMES.findall(rule["expr"]) for name in SERVED[figure].labels}
        assert set(re.findall(r"\$labels\.([a-z_]+)", json.dumps(about))) <= labels | set(OF_PROCESSES), rule["alert"]


def test_the_page_about_monitoring_lists_each_alert_with_its_severity() -> None:
    page = (ROOT / "docs/operate/monitoring.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(Ringlog\w+)` \|.*\| (\w+) \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in rules())


def test_critical_conditions_have_an_alert() -> None:
    alarmed = {name for rule in rules() for name in NAMES.findall(rule["expr"])}
    assert alarmed >= {
        "ringlog_agent_ready",
        "ringlog_node_ready",
        "ringlog_node_heard_seconds",
        "ringlog_log_halted",
        "ringlog_log_behind_records",
        "ringlog_validator_waiting_requests",
        "ringlog_validator_commit_seconds_bucket",
        "ringlog_operations_oldest_seconds",
        "ringlog_awaited_node",
        "ringlog_node_streams_given_up",
        "ringlog_certificate_expires_seconds",
        "ringlog_acks_rejected_total",
        "ringlog_clock_seconds",
        "ringlog_cdc_writers_behind_seconds",
    }


def test_scraped_addresses_match_the_containers() -> None:
    services = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    wanted: dict[str, set[str]] = {}
    for service in services.values():
        command = service.get("command", [""])
        if command[0] == "agent":
            port = service["environment"]["RINGLOG_METRICS_PORT"]
            assert int(port) == 9400 + list(ROLES).index(command[1]), "as a supervisor sets them"
            wanted.setdefault("ringlog-agents", set()).add(port)
        if command[:2] == ["node", "run"]:
            wanted.setdefault("ringlog-nodes", set()).add(command[command.index("--port") + 1])
        if command[:2] == ["cdc", "run"]:
            wanted.setdefault("ringlog-cdc", set()).add(command[command.index("--metrics-port") + 1])
    config = loaded("prometheus.yml")
    assert config["rule_files"] == ["rules.yml"]
    found = {
        job["job_name"]: {
            target.removeprefix("127.0.0.1:") for one in job["static_configs"] for target in one["targets"]
        }
        for job in config["scrape_configs"]
    }
    assert found == wanted


def test_the_dashboard_of_all_metrics_is_current() -> None:
    assert dashboard.TARGET.read_text(encoding="utf-8") == dashboard.dashboard(), "run: make docs"
    shown = {name for panel in panels("metrics.json") for name in NAMES.findall(str(panel.get("targets")))}
    assert all(shown & {*metric.served} for metric in ALL_METRICS.values())


@pytest.mark.parametrize("name", ["dashboard.json", "metrics.json"])
def test_panels_of_a_dashboard_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(name):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels(name)}) == len(panels(name))


@pytest.mark.parametrize("name", ["datasource.yml", "dashboards.yml"])
def test_files_for_grafana_are_yaml(name: str) -> None:
    assert loaded(name)["apiVersion"] == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus: make setup SETUP_FLAGS=--test-programs")
def test_promtool_accepts_the_files() -> None:
    for what, name in (("rules", "rules.yml"), ("config", "prometheus.yml")):
        command = ["promtool", "check", what, str(WATCH / name)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
