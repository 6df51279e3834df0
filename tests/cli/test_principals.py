"""``ringlog principal`` and ``ringlog whoami`` on a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.cli.cluster import principals
from ringlog.cli.shared import submitting
from ringlog.client.client import Client
from ringlog.kernel.commands.control.principals import CreatePrincipal, RevokePrincipal
from ringlog.runtime.trust import REQUEST_KEY_VARIABLE
from ringlog.wire.requests import key_of_principal
from tests.cli.authoring import authoring, run

MASTER = "a-master-of-many-letters"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return the client of an empty cluster, for the command line."""
    monkeypatch.setenv(REQUEST_KEY_VARIABLE, "")
    with authoring(monkeypatch) as client:
        monkeypatch.setattr(principals, "connect", submitting.connect)
        yield client


@pytest.fixture
def master(tmp_path: Path) -> str:
    path = tmp_path / "master"
    path.write_text(MASTER)
    path.chmod(0o600)
    return str(path)


def key(client: Client, name: str, number: int) -> str:
    return f"{key_of_principal(MASTER, client.state.cluster_id, name, number)}\n"


def test_principals_are_created_changed_and_revoked(client: Client, master: str, tmp_path: Path) -> None:
    file = tmp_path / "root.key"
    assert run("principal", "list")[1] == "requests are not authenticated: the cluster has no principals\n"
    made = run("principal", "create", "root", "--role", "admin", "--request-master", master, "--to", str(file))
    assert made[0] == 0, made
    assert file.read_text() == key(client, "root", 1)
    assert file.stat().st_mode & 0o777 == 0o600
    words = ("principal", "create", "shop", "--role", "operator", "--scope", "b", "--scope", "a")
    assert json.loads(run(*words, "--json")[1])["outcome"] == "applied"
    assert run("principal", "grant", "shop", "--role", "application")[0] == 0
    (root, shop) = json.loads(run("principal", "list", "--json")[1])
    assert root == {
        "name": "root",
        "key": 1,
        "created": 2,
        "revoked": None,
        "roles": [{"role": "admin", "keyspaces": []}],
    }
    assert shop["roles"] == [
        {"role": "application", "keyspaces": []},
        {"role": "operator", "keyspaces": ["a", "b"]},
    ]
    assert "operator (a, b)" in run("principal", "list")[1]
    assert run("principal", "revoke", "shop", "--role", "application")[0] == 0
    assert run("principal", "revoke", "shop")[0] == 0
    assert run("principal", "create", "shop", "--role", "node")[2].startswith("principal_exists: ")
    assert run("principal", "revoke", "root")[2].startswith("admin_needed: ")


def test_a_key_is_written_and_rotated(client: Client, master: str, tmp_path: Path) -> None:
    client.direct.submit(CreatePrincipal("root", "admin"))
    file, source = tmp_path / "root.key", ("--request-master", master)
    words = ("principal", "key", "root", *source, "--to", str(file))
    assert json.loads(run(*words, "--next", "--json")[1]) == {"principal": "root", "key": 1, "file": str(file)}
    assert file.read_text() == key(client, "root", 1) + key(client, "root", 2)
    assert run("principal", "key", "root", "--rotate")[0] == 0
    assert client.read_barrier().principals["root"].key == 2
    assert run(*words)[0] == 0
    assert file.read_text() == key(client, "root", 2)
    assert run(*words, "--rotate")[0] == 0
    assert file.read_text() == key(client, "root", 3)


def test_without_a_place_for_its_key_a_principal_is_not_created(client: Client, master: str, tmp_path: Path) -> None:
    client.direct.submit(CreatePrincipal("root", "admin"))
    words = ("principal", "create", "ops", "--role", "operator", "--request-master", master, "--to")
    with pytest.raises(AssertionError, match="No such file"):  # only the whole program catches FileUnusable
        run(*words, str(tmp_path / "none" / "ops.key"))
    assert "ops" not in client.read_barrier().principals
    kept = tmp_path / "root.key"
    kept.write_text("the key in use")
    again = ("principal", "create", "root", "--role", "admin", "--request-master", master, "--to", str(kept))
    assert run(*again)[2].startswith("principal_exists: ")
    assert kept.read_text() == "the key in use"


def test_missing_options_and_principals_are_refused(client: Client, master: str, tmp_path: Path) -> None:
    file = str(tmp_path / "x.key")
    client.direct.submit(CreatePrincipal("root", "admin"))
    client.direct.submit(CreatePrincipal("old", "node"))
    client.direct.submit(RevokePrincipal("old"))
    for status, code, words in (
        (1, "bad_trust_config", ("principal", "key", "root", "--to", file, "--request-master", file)),
        (1, "unknown_principal", ("principal", "key", "nobody", "--to", file, "--request-master", master)),
        (1, "unknown_principal", ("principal", "key", "old", "--rotate")),
        (1, "bad_field", ("principal", "create", "x", "--role", "king")),
        (1, "unknown_principal", ("principal", "revoke", "nobody")),
    ):
        found, out, err = run(*words)
        assert (found, out, err.split(":")[0]) == (status, "", code), words
    for options in ((), ("--to", file)):
        found, out, err = run("principal", "key", "root", *options)
        assert (found, out, "--request-master" in err) == (2, "", True)
    assert not Path(file).exists()


def test_whoami_says_whose_key_signs(
    client: Client, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("whoami")[1].splitlines()[-1].startswith("requests are not authenticated: ")
    file = tmp_path / "ops.key"
    client.direct.submit(CreatePrincipal("root", "admin"))
    client.direct.submit(CreatePrincipal("ops", "operator", ("ks",)))
    assert json.loads(run("whoami", "--json")[1]) == {
        "principal": None,
        "key": None,
        "valid": False,
        "roles": [],
        "authenticated": True,
    }
    run("principal", "key", "ops", "--request-master", master, "--to", str(file))
    monkeypatch.setenv(REQUEST_KEY_VARIABLE, str(file))
    assert run("whoami")[1] == "ops, key 1: operator (ks)\n"
    run("principal", "key", "ops", "--rotate")
    assert run("whoami")[1] == "ops, key 1: not valid, key 2 is\n"
    assert json.loads(run("whoami", "--json")[1])["valid"] is False
