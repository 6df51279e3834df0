"""The manifests for Kubernetes have known commands, restricted pods and valid fields."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlog.protocol.roles import ROLES
from tests.cli.known_commands import parse
from tests.tidy.files import ROOT

MANIFESTS = sorted((ROOT / "compose" / "kubernetes").glob("*.yaml"))
VALIDATE = Path(sys.executable).with_name("kubernetes-validate")
VALUES = {"$(POD_NAME)": "nodes-0", "$(RINGLOG_CLUSTER)": "shop"}


def objects() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def workloads() -> dict[str, dict[str, Any]]:
    """Return the pods by the name of their workload."""
    return {one["metadata"]["name"]: one["spec"]["template"] for one in objects() if "template" in one.get("spec", {})}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in workloads().items():
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            yield name, container


def test_the_program_knows_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    (settings,) = (one["data"] for one in objects() if one["kind"] == "ConfigMap")
    for name, value in settings.items():
        if "/etc/" not in value:  # those files are not on this machine
            monkeypatch.setenv(name, value)
    commands = [container["args"] for _, container in containers() if "args" in container]
    assert len(commands) >= len(ROLES) + 4
    for command in commands:
        parse([re.sub(r"\$\(\w+\)", lambda found: VALUES[found[0]], word) for word in command])


def test_settings_exist() -> None:
    known = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    for path in MANIFESTS:
        for name in set(re.findall(r"RINGLOG_[A-Z_]+", path.read_text(encoding="utf-8"))):
            assert f"`{name}`" in known, name


def test_agents_differ_only_in_their_role() -> None:
    found = [one for one in objects() if one["kind"] == "Deployment" and one["metadata"]["name"] != "console"]
    roles = [one["metadata"]["name"] for one in found]
    assert sorted(roles) == sorted(ROLES)
    texts = {yaml.safe_dump(one).replace(role, "ROLE") for one, role in zip(found, roles, strict=True)}
    assert len(texts) == 1


def test_pods_are_restricted() -> None:
    """The profile ``restricted`` of the pod security standards, a read-only file system, and no token of the API."""
    namespace = next(one for one in objects() if one["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, pod in workloads().items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "secret"}, name
    for name, container in containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", container["image"]), name


def test_the_user_of_pods_is_that_of_the_image() -> None:
    created = re.search(r"useradd --uid (\d+)", (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8"))
    assert created is not None
    for name, pod in workloads().items():
        context = pod["spec"]["securityContext"]
        assert {context["runAsUser"], context["fsGroup"]} == {int(created[1])}, name


@pytest.mark.skipif(not VALIDATE.exists(), reason="needs schemas: make setup SETUP_FLAGS=--test-programs")
def test_fields_are_those_of_the_api(tmp_path: Path) -> None:
    def validate(*paths: Path) -> subprocess.CompletedProcess[str]:
        command = [str(VALIDATE), "--strict", *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    checked = validate(*MANIFESTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = tmp_path / "wrong.yaml"
    text = next(path for path in MANIFESTS if path.stem == "nodes").read_text(encoding="utf-8")
    wrong.write_text(text.replace("serviceName:", "service:"), encoding="utf-8")
    assert validate(wrong).returncode != 0
