"""Check the golden bytes of ``docs/build/golden`` against the code, and with a program that does not use Ringlog."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringlog.wire.entries import decode_entry
from ringlog.wire.records import decode_result
from ringlog.wire.requests import decode_requests
from tests.tidy.files import ROOT
from tests.wire.golden_wire import FOLDER, RENEW, made, text

PAGE = FOLDER.parent / "other-languages.md"
CHECK = FOLDER / "check.py"
REQUESTS = json.loads((FOLDER / "requests.json").read_text(encoding="utf-8"))
ALONE = {"confluent_kafka", "fastavro", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", ["requests.json", "changes.json"])
def test_the_golden_file_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == text(made()[name]), RENEW


def test_ringlog_reads_its_own_records() -> None:
    for case in REQUESTS["cases"]:
        (request,) = decode_requests(bytes.fromhex(case["request"]["record"]))
        assert request is not None
        assert request.payload.hex() == case["payload"]
        assert all(decode_result(bytes.fromhex(one["record"])).digest == case["digest"] for one in case["results"])
        if case["entry"] is not None:
            assert decode_entry(bytes.fromhex(case["entry"]["record"])).digest == case["digest"]
    assert len(decode_requests(bytes.fromhex(REQUESTS["batch"]["record"]))) == 2


def test_every_answer_is_shown() -> None:
    results = [one["says"] for case in REQUESTS["cases"] for one in case["results"]]
    assert {one["outcome"] for one in results} == {"applied", "rejected", "expired"}
    assert {one["code"] for one in results} >= {"request_id_reused", "unknown_command", "undecodable"}
    topics = {case["topic"] for case in json.loads((FOLDER / "changes.json").read_text(encoding="utf-8"))["cases"]}
    assert topics == {"epochs", "nodes", "operations", "placements", "schema"}


def checked(schemas: Path, golden: Path) -> subprocess.CompletedProcess[str]:
    """Run the independent program. ``-I`` removes the paths of this project."""
    return subprocess.run(
        [sys.executable, "-I", str(CHECK), str(schemas), str(golden)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_golden_programs_do_not_import_ringlog(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= ALONE


def test_an_independent_program_reproduces_the_bytes() -> None:
    ended = checked(ROOT / "schemas" / "ringlog_schemas", FOLDER)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{len(REQUESTS['cases'])} requests and ")


def test_the_independent_program_finds_a_wrong_byte(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "changes.json", tmp_path)
    wrong = json.dumps(REQUESTS).replace(REQUESTS["cases"][0]["digest"], "0" * 64)
    (tmp_path / "requests.json").write_text(wrong, encoding="utf-8")
    assert "AssertionError" in checked(ROOT / "schemas" / "ringlog_schemas", tmp_path).stderr


GO = shutil.which("go") or shutil.which("/usr/local/go/bin/go")


@pytest.mark.skipif(GO is None, reason="needs Go")
def test_the_digest_in_go_is_the_same(tmp_path: Path) -> None:
    (function,) = re.findall(r"^```go\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    calls = [
        f'fmt.Println(Digest({json.dumps(case["kind"])}, {case["version"]}, unhex("{case["payload"]}")))'
        for case in REQUESTS["cases"]
    ]
    unhex = "func unhex(text string) []byte { found, _ := hex.DecodeString(text); return found }"
    (tmp_path / "main.go").write_text(f"package main\n{function}\n{unhex}\nfunc main() {{\n" + "\n".join(calls) + "}\n")
    ended = subprocess.run([str(GO), "run", "main.go"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == [case["digest"] for case in REQUESTS["cases"]], ended.stderr
