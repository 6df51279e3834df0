"""The services of ``compose.yaml`` as podman commands, in the order of ``depends_on``.

All containers share the network namespace of ``network``, which has only a loopback device here. So the ports of this
machine stay free. Health checks run as commands, because podman's own need systemd.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from ringlog.stack.artifacts import cache_root
from tests.tidy.files import ROOT
from tests.waiting import until

LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
COMPOSE = ROOT / "compose" / "compose.yaml"
_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def engine() -> list[str]:
    """Return podman with its own storage in the user's cache, so that layers are built once."""
    return ["podman", "--root", str(cache_root() / "containers"), "--runroot", "/run/ringlog-containers"]


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run([*engine(), *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0 or not check, f"{' '.join(arguments)}: {ended.stderr}{ended.stdout}"
    return ended


def build(log: Path) -> None:
    """Build the image as ``make image`` does."""
    flags = " ".join(("--network", "host", *LIMITS))
    with log.open("wb") as output:
        ended = subprocess.run(
            ["sh", str(ROOT / "compose" / "build.sh")],
            env={**os.environ, "ENGINE": " ".join(engine()), "FLAGS": flags},
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, log.read_text(errors="replace")[-4000:]


def composed() -> dict[str, Any]:
    """Return the services without a profile, with default values for variables."""
    services = yaml.safe_load(_VARIABLE.sub(r"\1", COMPOSE.read_text(encoding="utf-8")))["services"]
    return {name: service for name, service in services.items() if not service.get("profiles")}


class Containers:
    """The containers of one test. ``prefix`` separates their names and volumes from others.

    ``host`` is a name that resolves to the loopback address.
    """

    def __init__(self, prefix: str, host: str = "network") -> None:
        self.services = composed()
        self._prefix = prefix
        self._host = host
        self._started: list[str] = []

    def name(self, service: str) -> str:
        return f"{self._prefix}-{service}"

    def network(self, mode: str = "service:network") -> list[str]:
        shared = mode.replace("service:", f"container:{self._prefix}-")
        return ["--network", shared] if mode else ["--network", "none", "--add-host", f"{self._host}:127.0.0.1"]

    def options(self, name: str) -> list[str]:
        """Return the arguments of ``podman run`` for a service."""
        service = self.services[name]
        found = ["--name", self.name(name), *self.network(service.get("network_mode", "")), *LIMITS]
        found += [f"--restart={service['restart']}"] if "restart" in service else []
        found += ["--read-only", "--read-only-tmpfs=false"] if service.get("read_only") else []
        found += [f"--stop-signal={service['stop_signal']}"] if "stop_signal" in service else []
        found += ["--entrypoint", json.dumps(service["entrypoint"])] if "entrypoint" in service else []
        for option, values in (
            ("--cap-drop", service["cap_drop"]),
            ("--security-opt", service["security_opt"]),
            ("--tmpfs", service["tmpfs"]),
            ("--volume", [self.name(volume) for volume in service.get("volumes", ())]),
            ("--env", [f"{key}={value}" for key, value in service.get("environment", {}).items()]),
        ):
            found += [part for value in values for part in (option, value)]
        return [*found, service["image"], *service.get("command", ())]

    def start(self, name: str) -> None:
        """Start a service after those that it depends on."""
        if name in self._started:
            return
        for other, how in self.services[name].get("depends_on", {}).items():
            self.start(other)
            self.wait(other, how["condition"])
        self.add(name, *self.options(name))

    def add(self, name: str, *options: str) -> None:
        """Start a container that ``close`` removes."""
        self._started.append(name)
        podman("run", "--detach", *options)

    def wait(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            assert podman("wait", self.name(name)).stdout.strip() == "0", self.logs(name)
        elif condition == "service_healthy":
            test = self.services[name]["healthcheck"]["test"]
            assert test[0] == "CMD"
            until(lambda: self.run(name, *test[1:], check=False).returncode == 0, f"{name} to be healthy")

    def run(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        return podman("exec", self.name(service), *command, check=check)

    def running(self, service: str) -> bool:
        return podman("inspect", "--format", "{{.State.Running}}", self.name(service)).stdout.strip() == "true"

    def logs(self, service: str) -> str:
        ended = podman("logs", "--tail", "40", self.name(service), check=False)
        return ended.stdout + ended.stderr

    def close(self) -> None:
        network, *others = (self.name(name) for name in self._started)
        podman("rm", "--force", "--time", "0", *others, check=False)
        podman("rm", "--force", network, check=False)
        volumes = podman("volume", "ls", "--quiet", "--filter", f"name={self._prefix}-").stdout.split()
        podman("volume", "rm", "--force", *volumes, check=False)
        podman("image", "prune", "--force", check=False)
