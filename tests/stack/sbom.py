"""The list of components (SBOM) of an installation, as CycloneDX JSON: ``make sbom``.

It contains each locked Python package and each jar with the hashes that set-up checks. The same lock files give the
same bytes, so the list has no time of its creation.

Source: CycloneDX 1.6, package URLs (purl).
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ringlog.stack.artifacts import LIST, parse

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = (ROOT / "requirements.lock", *sorted(ROOT.glob("requirements-spark-*.lock")))
_PACKAGE: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/ringlog")


def python_components(lock: str) -> Iterator[dict[str, Any]]:
    """Yield the packages of a lock file. A package has several files, so the hashes belong to its distribution."""
    found = list(_PACKAGE.finditer(lock))
    for one, after in zip(found, [*found[1:], None], strict=True):
        name, version = one[1].lower(), one[2]
        hashes = _HASH.findall(lock[one.end() : None if after is None else after.start()])
        purl = f"pkg:pypi/{name}@{version}"
        files = {
            "type": "distribution",
            "url": f"https://pypi.org/project/{name}/{version}/",
            "hashes": _hashes(hashes),
        }
        yield _component(name, version, purl) | {"externalReferences": [files]}


def jar_components(listed: str) -> Iterator[dict[str, Any]]:
    """Yield the jars of a list, each once, although several sets may contain it."""
    for jar in {(one.group, one.name, one.version): one for one in parse(listed)}.values():
        purl = f"pkg:maven/{jar.group}/{jar.name}@{jar.version}?type=jar"
        yield _component(jar.name, jar.version, purl) | {"group": jar.group, "hashes": _hashes([jar.sha256])}


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _hashes(found: list[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": one} for one in found]


def bill_of_materials() -> dict[str, Any]:
    """Return the SBOM of this release."""
    locks = "".join(path.read_text(encoding="utf-8") for path in LOCKS)
    components = [*python_components(locks), *jar_components(LIST.read_text(encoding="utf-8"))]
    components.sort(key=lambda one: str(one["purl"]))
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None, "pyproject.toml has a version"
    product = {"type": "application", "bom-ref": "ringlog", "name": "ringlog", "version": version[1]}
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [{"ref": "ringlog", "dependsOn": [one["bom-ref"] for one in components]}],
    }


if __name__ == "__main__":
    json.dump(bill_of_materials(), sys.stdout, indent=1)
    print()
