"""The containers use the tested broker settings, and commands that the program knows."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from typer.exceptions import TyperException

from ringlog.protocol.roles import ROLES
from ringlog.stack import broker
from ringlog.stack.layout import StackLayout, StackSettings
from tests.cli.known_commands import parse
from tests.tidy.files import ROOT

COMPOSE = ROOT / "compose" / "compose.yaml"
DOCKERFILE = ROOT / "compose" / "Dockerfile"
ELSEWHERE = {"listeners", "log.dirs", *broker.threads(1)}
"""Settings that differ by nature: a container has its own listeners, folders and thread counts."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text())["services"]
    assert isinstance(found, dict)
    return found


def ours(services: dict[str, Any]) -> dict[str, list[str]]:
    """Return the commands of the services that run our program."""
    found = {name: service for name, service in services.items() if service["image"] == "ringlog:local"}
    return {name: service["command"] for name, service in found.items() if "entrypoint" not in service}


def test_the_program_knows_every_command(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in services["validator"]["environment"].items():
        monkeypatch.setenv(name, value)
    commands = ours(services)
    assert len(commands) >= 9
    script = (ROOT / "compose" / "console.sh").read_text(encoding="utf-8")
    typed = re.findall(r"^ *(?:exec )?ringlog (.*)$", script, re.MULTILINE)
    assert len(typed) == 2
    for command in (*commands.values(), *map(str.split, typed)):
        parse(command)


@pytest.mark.parametrize("command", [["nod", "run", "n1"], ["node", "run"], ["node", "run", "n1", "--colour", "red"]])
def test_an_unknown_command_is_found(command: list[str]) -> None:
    with pytest.raises(TyperException):
        parse(command)


def test_every_agent_has_a_container(services: dict[str, Any]) -> None:
    started = [command[1] for command in ours(services).values() if command[0] == "agent"]
    assert sorted(started) == sorted(ROLES)


def test_the_broker_has_the_tested_settings(services: dict[str, Any]) -> None:
    environment = services["broker"]["environment"]
    own = broker.properties(StackLayout(ROOT), StackSettings("id", 9092, 9093, "default", 0))
    for name, value in own.items():
        if name not in ELSEWHERE:
            assert environment[f"KAFKA_{name.upper().replace('.', '_')}"] == value, name


def test_the_image_has_every_script(services: dict[str, Any]) -> None:
    scripts = {service["entrypoint"][1] for service in services.values() if service.get("entrypoint", ("",))[0] == "sh"}
    (copied,) = re.findall(r"^COPY (compose/.*) compose/$", DOCKERFILE.read_text(), re.MULTILINE)
    assert scripts == set(copied.split())


def test_each_container_is_confined(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("user") != "root", name
        assert not service.get("privileged"), name
    assert {name for name, service in services.items() if not service.get("read_only")} == {"grafana"}
    for name in ours(services):
        assert any(place.endswith(":/var/lib/ringlog") for place in services[name]["volumes"]), "the rest is read-only"


def test_our_image_runs_as_an_ordinary_user() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    (user,) = (line for line in lines if line.startswith("USER"))
    assert user == "USER ringlog"
    assert not any(line.startswith("RUN") for line in lines[lines.index(user) :])


def test_each_public_image_is_named_by_its_digest(services: dict[str, Any]) -> None:
    bases = re.findall(r"^ARG BASE=(.*)", DOCKERFILE.read_text(), re.MULTILINE)
    named = [service["image"] for service in services.values() if service["image"] != "ringlog:local"]
    assert len(bases) == 1
    for image in (*bases, *named):
        assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", image), image


def test_every_dependency_exists(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other in service.get("depends_on", {}):
            assert other in services, name
        shared = service.get("network_mode", "service:network")
        assert shared == "service:network", name


def test_docker_accepts_the_file_if_installed() -> None:
    if shutil.which("docker") is None:
        return
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        command = ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
