"""Pods of ``compose/kubernetes`` run with podman: user, read-only file system, secrets and probes of the manifests.

Secrets and volumes belong to root and the pod's group, as the kubelet creates them. All pods share one network here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.podman import LIMITS, Containers, podman
from tests.tidy.test_kubernetes import objects, workloads
from tests.waiting import until

pytestmark = pytest.mark.containers

NODE = "nodes-0"
HERE = {"RINGLOG_BOOTSTRAP_SERVERS": "127.0.0.1:9092", "RINGLOG_REDIS_URL": "redis://127.0.0.1:6379/0"}
PROBE = """
import ssl, sys, urllib.request
request = urllib.request.Request(f"https://127.0.0.1:{sys.argv[1]}{sys.argv[2]}", headers={"Host": "10.1.2.3"})
print(urllib.request.urlopen(request, context=ssl._create_unverified_context()).status)
"""
"""The kubelet's probe: no certificate, no check of the server's, and the address of the pod as host."""


class Pods:
    """Workloads as containers, with folders of this machine as their volumes."""

    def __init__(self, containers: Containers, folder: Path) -> None:
        self._containers = containers
        self._folder = folder
        self._settings = next(one["data"] for one in objects() if one["kind"] == "ConfigMap")

    def secret(self, name: str, files: list[Path]) -> None:
        for file in files:
            path = self._volume(name) / file.name
            path.write_bytes(file.read_bytes())
            os.chown(path, 0, self.group)
            path.chmod(0o440)

    @property
    def group(self) -> int:
        return int(workloads()["nodes"]["spec"]["securityContext"]["fsGroup"])

    def _volume(self, name: str) -> Path:
        path = self._folder / name
        if not path.exists():
            path.mkdir()
            os.chown(path, 0, self.group)
            path.chmod(0o2775)
        return path

    def run(self, workload: str, **environment: str) -> str:
        """Run the init containers to their end, then start the container. Return its name."""
        spec = workloads()[workload]["spec"]
        for container in spec.get("initContainers", ()):
            podman("run", "--rm", *self._options(workload, spec, container, environment))
        (container,) = spec["containers"]
        self._containers.add(
            workload, "--name", self._containers.name(workload), *self._options(workload, spec, container, environment)
        )
        return workload

    def _options(
        self, workload: str, spec: dict[str, Any], container: dict[str, Any], given: dict[str, str]
    ) -> list[str]:
        user = spec["securityContext"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        found = [*self._containers.network(), *LIMITS, "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL"]
        found += ["--security-opt=no-new-privileges", f"--user={user['runAsUser']}:{user['runAsGroup']}"]
        if "workingDir" in container:
            found += ["--workdir", container["workingDir"]]
        if "command" in container:
            program, *words = container["command"]
            found += ["--entrypoint", program]
        else:
            words = container["args"]
        values = {**self._settings, "POD_NAME": NODE, **HERE} if "envFrom" in container else {"POD_NAME": NODE}
        values |= {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one} | given

        def expanded(text: str) -> str:
            return re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], text)

        for name, value in values.items():
            found += ["--env", f"{name}={expanded(value)}"]
        secrets = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
        for mount in container["volumeMounts"]:
            name = secrets.get(mount["name"], f"{workload}-{mount['name']}")
            access = "ro" if mount.get("readOnly") else "rw"
            found += ["--volume", f"{self._volume(name)}:{mount['mountPath']}:{access}"]
        return [*found, "ringlog:local", *map(expanded, words)]


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    found = Containers(f"ringlog-pods-{os.getpid()}", host=f"{NODE}.nodes.ringlog.svc")
    try:
        yield found
    finally:
        found.close()


def test_pods_create_a_cluster_and_a_node_joins(containers: Containers, tmp_path: Path) -> None:
    trust = tmp_path / "trust"
    program = [str(Path(sys.executable).with_name("ringlog")), "cluster", "certificates"]
    names = ["--node", NODE, "--node", "nodes-1", "--client", "console", "--agents", "agents"]
    subprocess.run([*program, str(trust), *names], check=True)
    (trust / "tokens").write_text("ann 0123456789abcdef\n")
    login = tmp_path / "client.properties"
    login.write_text("security.protocol=PLAINTEXT\n")
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    pods = Pods(containers, volumes)
    both = [trust / "ca.pem", trust / "token"]
    pods.secret("ringlog-kafka", [login])
    pods.secret("ringlog-agents", [*both, *trust.glob("agents.*"), *trust.glob("*.master")])
    pods.secret("ringlog-console", [*both, *trust.glob("console.*"), trust / "tokens"])
    pods.secret("ringlog-nodes", [*both, *trust.glob("nodes-*.*")])

    for service in ("broker", "redis"):
        containers.start(service)
        containers.wait(service, "service_healthy")
    containers.wait(pods.run("create"), "service_completed_successfully")
    probes = {
        pods.run("validator"): "9400",
        pods.run("coordinator", RINGLOG_METRICS_PORT="9401"): "9401",
        pods.run("publisher", RINGLOG_METRICS_PORT="9402"): "9402",
        pods.run("nodes"): "7101",
        pods.run("console"): "8443",
    }
    for name, port in probes.items():
        (container,) = workloads()[name]["spec"]["containers"]
        path = container["readinessProbe"]["httpGet"]["path"]
        until(
            lambda: containers.run(name, "python", "-c", PROBE, port, path, check=False).stdout == "200\n",  # noqa: B023
            f"{name} to be ready",
        )
    until(lambda: "normal" in containers.run("validator", "ringlog", "node", "list", check=False).stdout, "a node")
    files = containers.run("nodes", "ls", "/etc/ringlog/trust").stdout.split()
    assert not [name for name in files if name.startswith("nodes-1")]
