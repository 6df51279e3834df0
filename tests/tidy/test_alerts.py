"""Prometheus evaluates the alert rules: each alert is silent below its threshold, and fires with its labels above it.

Each case has series with 70 healthy values and then 200 others, one a minute, in the notation of ``promtool``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.files import ROOT

RULES = ROOT / "compose" / "watch" / "rules.yml"
HEALTHY, LATER = 70, 200

AGENT = 'role="coordinator"'
NODE = 'node="n1"'
CASES: dict[str, tuple[str, ...]] = {
    "RinglogDown": ('up{job="ringlog-nodes",instance="n1:7101"} 1 0',),
    "RinglogRoleVacant": (f'ringlog_agent_state{{{AGENT},state="active"}} 1 _',),
    "RinglogAgentNotReady": (f'ringlog_agent_ready{{{AGENT},instance="a1:9401"}} 1 0',),
    "RinglogNodeNotReady": (f"ringlog_node_ready{{{NODE}}} 1 0",),
    "RinglogNodeSilent": (f"ringlog_node_heard_seconds{{{NODE}}} 0+60 240",),
    "RinglogLogHalted": (f"ringlog_log_halted{{{NODE}}} 0 1",),
    "RinglogStateBroken": (f"ringlog_agent_broken_state{{{AGENT}}} 0 1",),
    "RinglogRecoveryOpen": (f"ringlog_cluster_in_recovery{{{AGENT}}} 0 1",),
    "RinglogBrokerSilent": (f"ringlog_log_silent_seconds{{{NODE}}} 60 61+60",),
    "RinglogLogBehind": (f"ringlog_log_behind_records{{{NODE}}} 1000 1001",),
    "RinglogNoSnapshot": (f"ringlog_epoch{{{AGENT}}} 100000 100002", f"ringlog_snapshot_epoch{{{AGENT}}} 0 1"),
    "RinglogEntriesRefused": (f'ringlog_log_records_total{{{AGENT},outcome="refused"}} 0 1+1',),
    "RinglogRequestsWait": ('ringlog_validator_waiting_requests{role="validator"} 1000 1001',),
    "RinglogCommitSlow": (
        'ringlog_validator_commit_seconds_bucket{le="1.0"} 0+99 99',
        'ringlog_validator_commit_seconds_bucket{le="2.0"} 0+99 99+9',
        'ringlog_validator_commit_seconds_bucket{le="+Inf"} 0+99 99+9',
    ),
    "RinglogProposalsRefused": (f"ringlog_agent_refused_proposals{{{AGENT}}} 0 1",),
    "RinglogAcknowledgementsNotBelieved": (f"ringlog_acks_rejected_total{{{AGENT}}} 0 1+1",),
    "RinglogDecisionNeeded": (f'ringlog_operations{{{AGENT},waits_for="decision"}} 0 1',),
    "RinglogOperationWaits": (
        f'ringlog_operations_oldest_seconds{{{AGENT},waits_for="acknowledgements"}} 1800 1801+60',
    ),
    "RinglogTabletsWait": (f'ringlog_tablets_on_their_way{{{AGENT},waits_for="acknowledgements"}} 0 1',),
    "RinglogNodeAwaited": (f"ringlog_awaited_node{{{AGENT},{NODE}}} 0 1",),
    "RinglogStreamsGivenUp": (f"ringlog_node_streams_given_up{{{NODE}}} 0 1",),
    "RinglogNodeBehind": (f"ringlog_node_mutations_behind_records{{{NODE}}} 100000 100001",),
    "RinglogNodeAcknowledgesLate": (
        f"ringlog_node_acknowledged_epoch{{{NODE}}} 1000 1000",
        f"ringlog_epoch{{{AGENT}}} 2000 2001",
    ),
    "RinglogClockSkew": (f"ringlog_clock_seconds{{{NODE}}} 5+60 4206+60",),
    "RinglogCertificateExpires": (f"ringlog_certificate_expires_seconds{{{NODE}}} 608941 608939",),
    "RinglogBrokerClock": (f"ringlog_node_clock_ahead_seconds{{{NODE}}} 10 -3",),
    "RinglogLogTimeAhead": (f"ringlog_log_time_seconds{{{NODE}}} 10 11", f"ringlog_clock_seconds{{{NODE}}} 0 0"),
    "RinglogSettledAhead": (
        f"ringlog_cluster_settled_seconds{{{AGENT}}} 3600 3601",
        f"ringlog_clock_seconds{{{AGENT}}} 0 0",
    ),
    "RinglogWriterBehind": (f"ringlog_cdc_writers_behind_seconds{{{AGENT}}} 900 901",),
    "RinglogWriterLagUnknown": ('ringlog_cdc_behind_unknown_seconds{job="ringlog-cdc"} 60 61',),
    "RinglogReaderBehind": ('ringlog_cdc_reader_behind_seconds{instance="r1:9420"} 900 901',),
    "RinglogCdcWaits": ('ringlog_cdc_waiting_seconds{job="ringlog-cdc"} 300 301',),
    "RinglogDeadLetters": ('ringlog_cdc_rejected_total{reason="unknown_table"} 0 1+1',),
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def case(alert: str, rule: dict[str, Any]) -> dict[str, Any]:
    """Return a test for ``promtool``."""
    series: list[dict[str, str]] = []
    labels: dict[str, str] = {}
    for one in reversed(CASES[alert]):
        name, good, bad = one.rsplit(" ", 2)
        series.append({"series": name, "values": f"{good}x{HEALTHY - 1} {bad}x{LATER - 1}"})
        found = re.findall(r'(\w+)="([^"]*)"', name)
        labels = {key: value for key, value in found if key not in DROPPED.get(alert, ())}

    def rendered(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), text)

    fired = {
        "exp_labels": {**labels, **rule["labels"]},
        "exp_annotations": {key: rendered(text) for key, text in rule["annotations"].items()},
    }
    return {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{HEALTHY - 1}m", "alertname": alert},
            {"eval_time": f"{HEALTHY + LATER // 2}m", "alertname": alert, "exp_alerts": [fired]},
        ],
    }


DROPPED = {"RinglogRoleVacant": ("state",), "RinglogCommitSlow": ("le",)}
"""Labels that an aggregation removes."""


def promtool(
    folder: Path, chosen: dict[str, dict[str, Any]], planned: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Test each rule alone, because every step of a test evaluates all rules of its file.

    ``planned``: the test of each rule instead of its case.
    """
    files = []
    for alert, rule in chosen.items():
        group = {"name": alert, "rules": [rule]}
        (folder / f"{alert}.rules.yml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
        files.append(folder / f"{alert}.yml")
        test = {"rule_files": [f"{alert}.rules.yml"], "tests": [planned or case(alert, rule)]}
        files[-1].write_text(yaml.safe_dump(test), encoding="utf-8")
    return subprocess.run(["promtool", "test", "rules", *files], capture_output=True, text=True, check=False)


def test_each_alert_has_a_case() -> None:
    assert CASES.keys() == rules().keys()


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Prometheus: make setup SETUP_FLAGS=--test-programs"
)


@needs_promtool
def test_each_alert_fires_in_its_case_only(tmp_path: Path) -> None:
    ended = promtool(tmp_path, rules())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for alert, planted in (
        ("RinglogWriterBehind", {"expr": "ringlog_cdc_writers_behind_seconds > 899"}),
        ("RinglogRecoveryOpen", {"for": "2h"}),
        ("RinglogRoleVacant", {"expr": 'max by (role) (ringlog_agent_state{state="active"}) == 0'}),
    ):
        assert promtool(tmp_path, {alert: rules()[alert] | planted}).returncode != 0, alert


@needs_promtool
def test_the_first_rejections_of_a_job_fire(tmp_path: Path) -> None:
    """A series of rejections begins with the first of its reason: Prometheus sees no increase then."""
    alert = "RinglogDeadLetters"
    rule = rules()[alert]
    todo = {key: text.replace("{{ $labels.reason }}", "no_generation") for key, text in rule["annotations"].items()}
    fired = {"exp_labels": {"reason": "no_generation", **rule["labels"]}, "exp_annotations": todo}
    times = (("18m", []), ("19m", [fired]), ("28m", [fired]), ("30m", []), ("58m", []), ("60m", [fired]), ("75m", []))
    planned = {
        "interval": "1m",
        # Nineteen minutes without the job, five rejections in its first batch, and two after a restart.
        "input_series": [
            {"series": 'ringlog_cdc_rejected_total{reason="no_generation"}', "values": "_x19 5x35 _x4 2x30"}
        ],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": alerts} for at, alerts in times],
    }
    ended = promtool(tmp_path, {alert: rule}, planned)
    assert ended.returncode == 0, ended.stdout + ended.stderr
