"""A node key needs no authority, and the command prints its path. An authority is replaced in separate steps."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.operator.certificates import DAY_S, AuthorityInUse, CertificatesFailed
from ringlog.runtime.trust import TrustFile
from ringlog.wire.acks import key_of
from ringlog.wire.requests import key_of_principal
from tests.certificates import needs_openssl

NOW = time.time()
NODE = "018f0000-0000-7000-8000-000000000001"


def test_a_node_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    words = ["cluster", "certificates", str(folder), "--ack-key"]
    bad = CliRunner().invoke(app, [*words, "n1=nope"])
    assert (bad.exit_code, folder.exists()) == (1, False)
    made = CliRunner().invoke(app, [*words, f"n1={NODE}"])
    assert made.exit_code == 0
    assert "ca.key" not in made.stdout, "no authority is created"
    (told,) = json.loads(CliRunner().invoke(app, [*words, f"n1={NODE}", "--json"]).stdout)
    assert told == {"name": "n1", "node": NODE, "ack_key": str(folder / "n1.acks")}
    master = (folder / "acks.master").read_text().strip()
    assert (folder / "n1.acks").read_text().split() == [key_of(master, NODE)]


def certificates(folder: Path, *options: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["cluster", "certificates", str(folder), *options])
    return ended.exit_code, ended.output


@needs_openssl
def test_an_authority_is_replaced_in_three_steps(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    for options in (("--node", "n1"), ("--new-ca",), ("--node", "n1"), ("--retire-ca",)):
        code, said = certificates(folder, *options)
        assert code == 0, said
    assert (folder / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 1


@needs_openssl
def test_a_used_authority_is_not_retired(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    for options in (("--node", "n1", "--client", "ops", "--agents", "agents"), ("--new-ca",), ("--node", "n1")):
        assert certificates(folder, *options)[0] == 0
    before = (folder / "ca.pem").read_text()
    refused = CliRunner().invoke(app, ["cluster", "certificates", str(folder), "--retire-ca"]).exception
    assert isinstance(refused, AuthorityInUse)
    assert str(refused).startswith(f"agents.pem, ops.pem in {folder}: signed by an old authority.")
    assert f"`ringlog cluster certificates {folder} --agents agents --client ops`" in str(refused)
    assert (folder / "ca.pem").read_text() == before
    assert certificates(folder, "--agents", "agents", "--client", "ops")[0] == 0
    assert certificates(folder, "--retire-ca")[0] == 0


def expiry(folder: Path, name: str) -> float:
    return TrustFile(folder / f"{name}.properties").now().expires - time.time()


@needs_openssl
def test_a_run_without_names_renews_certificates_in_the_last_third_of_their_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trust"
    assert certificates(folder, "--node", "n1", "--client", "ops", "--agents", "agents")[0] == 0
    assert expiry(folder, "n1") == pytest.approx(30 * DAY_S, abs=600)
    assert certificates(folder, "--client", "late", "--days", "60")[0] == 0
    with (folder / "n1.properties").open("a") as config:
        config.write("revoked.file=revoked\n")
    (folder / "foreign.pem").write_bytes((folder / "ops.pem").read_bytes())
    node = TrustFile(folder / "ops.properties").now()
    before = {path.name: path.read_bytes() for path in folder.glob("*.pem")}

    code, said = certificates(folder)
    assert (code, "no certificate is in the last third" in said) == (0, True)
    for days, due in ((19, []), (21, ["agents", "n1", "ops"]), (41, ["agents", "late", "n1", "ops"])):
        monkeypatch.setattr("ringlog.operator.certificates.time.time", lambda days=days: NOW + days * DAY_S)
        shown = CliRunner().invoke(app, ["cluster", "certificates", str(folder), "--json"])
        assert sorted(one["name"] for one in json.loads(shown.stdout)) == due
    assert (folder / "foreign.pem").read_bytes() == before["foreign.pem"], "not made by this command"
    assert (folder / "ops.pem").read_bytes() != before["ops.pem"]
    assert "revoked.file=revoked" in (folder / "n1.properties").read_text(), "lines of the operator stay"
    assert TrustFile(folder / "ops.properties").now().ca == node.ca


@needs_openssl
def test_a_run_without_names_renews_certificates_of_an_old_authority(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    for options in (("--node", "n1", "--agents", "agents"), ("--new-ca",), (), ("--retire-ca",)):
        code, said = certificates(folder, *options)
        assert code == 0, said
    assert certificates(folder)[1].strip() == "no certificate is in the last third of its life"
    assert isinstance(CliRunner().invoke(app, ["cluster", "certificates", str(tmp_path)]).exception, CertificatesFailed)


@needs_openssl
def test_nodes_and_clients_get_their_keys_and_agents_the_master(tmp_path: Path) -> None:
    folder = tmp_path / "trust"
    assert certificates(folder, "--node", "n1", "--client", "ops", "--agents", "agents")[0] == 0
    agents = TrustFile(folder / "agents.properties").now()
    (master,) = agents.request_masters
    assert (folder / "request.master").stat().st_mode & 0o777 == 0o600
    assert not TrustFile(folder / "n1.properties").now().request_keys, "the cluster is not known"
    for _ in range(2):  # A second run keeps the keys: they may have been rotated.
        code, said = certificates(folder, "--node", "n1", "--client", "ops", "--agents", "agents", "--cluster-id", NODE)
        assert (code, "request.master" in said) == (0, True), said
        for name in ("n1", "ops"):
            trust = TrustFile(folder / f"{name}.properties").now()
            assert (trust.request_masters, trust.request_keys) == ((), (f"{key_of_principal(master, NODE, name, 1)}",))
        (folder / "n1.pem").unlink()
    assert certificates(folder, "--client", "ops")[0] == 0
    assert TrustFile(folder / "ops.properties").now().request_keys
    bad = CliRunner().invoke(app, ["cluster", "certificates", str(folder), "--client", "x", "--cluster-id", "shop"])
    assert isinstance(bad.exception, CertificatesFailed)


@pytest.mark.parametrize("options", [("--new-ca", "--retire-ca"), ("--new-ca", "--node", "n1")])
def test_steps_are_separate(options: tuple[str, ...], tmp_path: Path) -> None:
    code, said = certificates(tmp_path / "trust", *options)
    assert (code, "bad_usage" in said) == (2, True)


def test_without_an_authority_a_replacement_fails(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["cluster", "certificates", str(tmp_path / "trust"), "--new-ca"])
    assert isinstance(ended.exception, CertificatesFailed)


# Credentials without a writable file are not created, and an existing file stays intact.


NOWHERE = ("--bootstrap", "127.0.0.1:1", "--cluster", "none", "--listener", "127.0.0.1:1")


def granted(to: Path) -> tuple[int, str]:
    """Return the exit status and the output; a broker would not answer."""
    said = CliRunner().invoke(app, ["cdc", "grant", "--writer", "w", "--to", str(to), *NOWHERE])
    return said.exit_code, said.output


def test_the_file_is_checked_before_the_broker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for to in (tmp_path, tmp_path / "missing" / "credentials", tmp_path / "file" / "credentials"):
        code, said = granted(to)
        assert (code, "bad_option" in said) == (1, True), said


def test_without_an_answer_no_file_is_made_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog.log.kafka.permissions.TIMEOUT_S", 0.5)
    old = tmp_path / "old"
    old.write_text("sasl.username=w\n")
    for to in (old, tmp_path / "new"):
        code, said = granted(to)
        assert (code, "log_unavailable" in said) == (1, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "sasl.username=w\n"
