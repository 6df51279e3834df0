"""The list of components contains each locked package and jar once, with its hashes."""

from __future__ import annotations

import re

from ringlog.stack.artifacts import LIST, parse
from tests.stack.sbom import LOCKS, bill_of_materials


def test_each_package_and_jar_is_listed_once_with_its_hashes() -> None:
    found = bill_of_materials()
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    refs = [one["bom-ref"] for one in found["components"]]
    assert len(set(refs)) == len(refs)
    locks = "".join(path.read_text() for path in LOCKS)
    pinned = set(re.findall(r"^(\S+)==([^\s;]+)", locks, re.MULTILINE))
    jars = {(jar.name, jar.version) for jar in parse(LIST.read_text())}
    assert {(one["name"], one["version"]) for one in found["components"]} == pinned | jars
    hashes = {
        each["content"]
        for one in found["components"]
        for each in one.get("hashes", []) or one["externalReferences"][0]["hashes"]
    }
    assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", locks)) | {jar.sha256 for jar in parse(LIST.read_text())}


def test_the_same_locks_give_the_same_list() -> None:
    assert bill_of_materials() == bill_of_materials()
