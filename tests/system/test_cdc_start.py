"""A job that will be refused says so before Spark starts, names its waits, and leaves the checkpoint unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server
from tests.refusals import raises_code
from tests.system.cdc_world import World, founded_shop
from tests.system.spark_cluster import driver_environment

from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.log.errors import TopicMissing
from ringlog.stack import StackInfo
from ringlog_cdc.driver.preflight import check, lock_driver
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.store import claim_checkpoint
from ringlog_cdc.settings import JobSettings

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def shop(stack: StackInfo) -> Iterator[World]:
    with founded_shop(stack.bootstrap_servers, f"t{os.getpid()}starts") as made:
        yield made


def refused(settings: JobSettings, code: str, *jars: Path) -> list[str]:
    """Return the waits of a start that is refused with this code and changes no file."""
    said: list[str] = []

    def emit(event: str, **fields: Any) -> None:
        said.append(fields["waiting"] if event == "starting" else event)

    before = sorted(settings.checkpoint.rglob("*"))
    with raises_code(CdcError, code):
        check(settings, jars, emit, threading.Event())
    assert sorted(settings.checkpoint.rglob("*")) == before
    return said


def test_refusals_need_no_spark(shop: World, tmp_path: Path) -> None:
    settings = JobSettings(shop.bootstrap, shop.cluster, tmp_path / "checkpoint")
    check(settings, (), lambda _event, **_: None, threading.Event())
    assert not settings.checkpoint.exists()
    assert refused(settings, "connector_missing", tmp_path / "no.jar") == []

    shop.apply(RegisterCdcWriter("spark", "first", settings.source_topic))
    assert refused(settings, "checkpoint_lost") == ["the brokers to list the topics", "the metadata log to be read"]
    other = JobSettings(shop.bootstrap, shop.cluster, tmp_path / "checkpoint", writer="other")
    refused(other, "source_in_use")

    claim_checkpoint(settings.checkpoint, "another cluster", "spark", 8, registered=False)
    refused(settings, "checkpoint_of_another")
    assert refused(other, "checkpoint_of_another") == [], "the name of the writer needs no broker"
    with lock_driver(settings.checkpoint, threading.Event()):
        assert refused(settings, "checkpoint_in_use") == []
    missing = JobSettings(shop.bootstrap, "no-such-cluster", tmp_path / "new")
    with pytest.raises(TopicMissing):
        check(missing, (), lambda _event, **_: None, threading.Event())
    assert not missing.checkpoint.exists()


def started(shop: World, checkpoint: Path, cluster: str = "") -> subprocess.CompletedProcess[str]:
    where = ["--bootstrap", shop.bootstrap, "--cluster", cluster or shop.cluster]
    command = ["-m", "ringlog_cdc", "run", *where, "--checkpoint", str(checkpoint)]
    return fork_server.run(command, driver_environment(Path(sys.executable)), timeout=120)


def test_a_refused_command_never_starts_spark(shop: World, tmp_path: Path) -> None:
    claim_checkpoint(tmp_path / "taken", "another cluster", "spark", 8, registered=False)
    ended = started(shop, tmp_path / "taken")
    waits = [json.loads(line)["waiting"] for line in ended.stdout.splitlines()]
    assert (ended.returncode, waits) == (1, ["the brokers to list the topics", "the metadata log to be read"])
    assert "checkpoint_of_another" in ended.stderr
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["claim.json"]


def test_a_refusal_begins_with_its_code(shop: World, tmp_path: Path) -> None:
    claim_checkpoint(tmp_path, shop.state.cluster_id, "spark", 8, registered=False)
    claim = tmp_path / "claim.json"
    claim.write_bytes(claim.read_bytes().replace(b'"version":1', b'"version":2'))
    err = started(shop, tmp_path).stderr
    assert err.startswith(
        f"ringlog cdc: checkpoint_version: {claim} has version 2, and this release reads version 1 ("
    ), err
    err = started(shop, tmp_path / "new", "no-such-cluster").stderr
    assert err.startswith("ringlog cdc: topic_missing: topic no-such-cluster."), err
