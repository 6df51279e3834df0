"""A cluster that other machines can reach needs TLS, a login and certificates, or the consent of an operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.status import _print_summary
from ringlog.kernel.values import replace
from ringlog.operator.protection import missing_protection
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.runtime.kafka.security import PLAIN, Security
from ringlog.runtime.trust import PLAIN_TRUST, TRUST_VARIABLE, Trust

TRUST = Trust(ca=b"ca", certificate=b"certificate", key=b"key")
LOGIN = Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="p")
ALL = ("no TLS to the brokers", "no login at the brokers", "no certificates for nodes")
OUTSIDE = "192.0.2.1:9092"


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:9092", "localhost:9092,127.0.0.2:9093", "[::1]:9092"])
def test_local_brokers_need_no_protection(bootstrap: str) -> None:
    assert missing_protection(bootstrap, PLAIN, PLAIN_TRUST) == ()


@pytest.mark.parametrize("bootstrap", [OUTSIDE, "192.0.2.1", f"127.0.0.1:9092, {OUTSIDE}", "[2001:db8::1]:9092"])
def test_each_missing_protection_of_other_brokers_is_named(bootstrap: str) -> None:
    assert missing_protection(bootstrap, PLAIN, PLAIN_TRUST) == ALL
    assert missing_protection(bootstrap, LOGIN, PLAIN_TRUST) == ALL[2:]
    assert missing_protection(bootstrap, LOGIN, TRUST) == ()
    assert missing_protection(bootstrap, LOGIN, TRUST, has_principals=False) == ("no principals",)
    assert missing_protection(bootstrap, replace(LOGIN, protocol="SASL_PLAINTEXT"), TRUST) == ALL[:1]
    assert missing_protection(bootstrap, Security(protocol="SSL"), TRUST) == ALL[1:2]
    assert missing_protection(bootstrap, Security(protocol="SSL", certificate="c", key="k"), TRUST) == ()


def test_an_unprotected_cluster_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for variable in (VARIABLE, TRUST_VARIABLE):
        monkeypatch.setenv(variable, "")
    ended = CliRunner().invoke(app, ["cluster", "create", "shop", "--bootstrap", OUTSIDE])
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"unprotected_cluster: other machines can reach {OUTSIDE}: {', '.join(ALL)}")
    assert "or --insecure" in ended.stderr
    assert not list(tmp_path.rglob("*"))


def test_status_shows_missing_protection_in_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    _print_summary({"level": "OK", "reasons": ["a reason"]}, ALL)
    _print_summary({"level": "OK", "reasons": []}, ())
    assert capsys.readouterr().out.splitlines() == [f"OK, insecure: {', '.join(ALL)}", "  a reason", "OK"]
