"""Certificate and token files: accepted and refused files, and their replacement at runtime."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringlog.operator.certificates import (
    AuthorityInUse,
    CertificatesFailed,
    add_authority,
    make_certificates,
    retire_authorities,
)
from ringlog.runtime import trust as trust_module
from ringlog.runtime.certificates import serial_of
from ringlog.runtime.monitoring.scrape import is_admitted
from ringlog.runtime.trust import (
    PLAIN_TRUST,
    REQUEST_KEY_VARIABLE,
    TRUST_VARIABLE,
    BadTrustConfig,
    CertificateOfAnotherNode,
    Trust,
    TrustFile,
    UnguardedAddress,
    check_listen_address,
    current,
    is_loopback,
    name_of_node,
    node_of_names,
    read_trust,
    request_keys,
    use_trust_file,
)
from ringlog.wire.acks import key_of
from ringlog.wire.requests import PrincipalKey
from tests.certificates import needs_openssl
from tests.kernel.entries import uuid

TOKEN = "a-token-of-many-letters"
DAY = 86_400
ONE, OTHER = uuid(1, space=2), uuid(2, space=2)


def test_a_device_is_not_a_trust_file() -> None:
    with pytest.raises(BadTrustConfig, match=r"^/dev/null is not a regular file$"):
        TrustFile(Path("/dev/null")).now()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return certificates of a node and a client; tests must not change them."""
    folder = tmp_path_factory.mktemp("authority") / "made"
    make_certificates(folder, [("n1", ONE)], ["ops"], 2, ["agents"])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of them."""
    return Path(shutil.copytree(made, tmp_path / "made"))


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


# ------------------------------------------------------------------------------------------------------- accepted files


def test_without_a_file_connections_are_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    assert current() == PLAIN_TRUST
    assert (PLAIN_TRUST.encrypts, PLAIN_TRUST.headers(), PLAIN_TRUST.url("a:1")) == (False, {}, "http://a:1")


@needs_openssl
def test_a_certificate_names_its_node(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, "")
    use_trust_file(made / "n1.properties")
    assert (current().node, current().url("a:1")) == (ONE, "https://a:1")
    assert TrustFile(made / "ops.properties").now().node == ""
    assert current().expires - (made / "n1.pem").stat().st_mtime == pytest.approx(2 * 86_400, abs=600)
    (token,) = current().tokens
    assert current().headers() == {"Authorization": f"Bearer {token}"}
    key = (made / "n1.key").read_text().splitlines()[1]
    assert not any(secret in repr(current()) for secret in (token, key, *current().ack_keys))


@needs_openssl
def test_only_agents_verify_the_author_of_an_acknowledgement(folder: Path) -> None:
    agents, node, operator = (TrustFile(folder / f"{name}.properties").now() for name in ("agents", "n1", "ops"))
    (master,) = agents.ack_masters
    assert (node.ack_keys, node.ack_masters) == ((key_of(master, ONE),), ())
    assert (operator.ack_keys, operator.ack_masters, agents.ack_keys) == ((), (), ())
    assert master not in repr(agents)
    written(folder / "acks.master", f"a-master-of-many-letters\n{master}\n")
    make_certificates(folder, [("n1", "")], [], 2)
    keys = TrustFile(folder / "n1.properties").now().ack_keys
    assert keys == (key_of("a-master-of-many-letters", ONE), key_of(master, ONE)), "the first process creates it"


def test_the_keys_of_requests_are_read_from_a_file_of_their_own_or_the_trust_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = PrincipalKey("ops", 1, "0" * 64), PrincipalKey("ops", 2, "1" * 64)
    monkeypatch.delenv(REQUEST_KEY_VARIABLE, raising=False)
    monkeypatch.setenv(TRUST_VARIABLE, str(written(tmp_path / "t1", "request.key=one\nrequest.master=token\n")))
    written(tmp_path / "one", f"{one}\n")
    written(tmp_path / "token", f"{TOKEN}\n")
    assert (request_keys(), current().request_masters) == ((one,), (TOKEN,))
    assert not {one.key, TOKEN} & {*repr(current()).split("'")}
    monkeypatch.setenv(REQUEST_KEY_VARIABLE, str(written(tmp_path / "two", f"{two}\n{one}\n")))
    assert request_keys() == (two, one)
    for text in ("ops/1\n", f"{one}\nmore-than-16-letters\n"):
        monkeypatch.setenv(REQUEST_KEY_VARIABLE, str(written(tmp_path / f"bad{len(text)}", text)))
        with pytest.raises(BadTrustConfig):
            request_keys()
    with pytest.raises(BadTrustConfig, match=r"each line must be NAME/NUMBER/KEY"):
        TrustFile(written(tmp_path / "t2", "request.key=token\n")).now()


@needs_openssl
def test_another_program_makes_the_same_key(folder: Path) -> None:
    told = subprocess.run(
        ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"key:{TOKEN}", "-r"],
        input=f"ringlog acks of {ONE}".encode(),
        capture_output=True,
        check=True,
    )
    assert told.stdout[:64].decode() == key_of(TOKEN, ONE)


@needs_openssl
def test_a_renewed_certificate_keeps_its_identity(folder: Path) -> None:
    before = (folder / "n1.pem").read_bytes(), (folder / "ca.pem").read_bytes()
    (again,) = make_certificates(folder, [("n1", "")], [], 2)
    assert again.node == ONE
    assert ((folder / "n1.pem").read_bytes() == before[0], (folder / "ca.pem").read_bytes()) == (False, before[1])
    assert {path.name: path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == dict.fromkeys(
        [folder.name, *(path.name for path in folder.iterdir())], 0
    )


@pytest.mark.parametrize("name", ["ca", "token", "acks", "../up", "", "two"])
def test_names_outside_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CertificatesFailed, match="one name for each"):
        make_certificates(tmp_path / "made", [(name, "")], ["two"], 2)
    assert not (tmp_path / "made").exists()


# ------------------------------------------------------------------------------------------------------- rejected files


@needs_openssl
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda at: written(at / "n1.properties", "tls.ca=ca.pem\ntls.key=n1.key\n"), "set .* together"),
        (lambda at: written(at / "n1.properties", "tls.password=x\n"), "line 1: tls.password: must be one of"),
        (lambda at: written(at / "n1.properties", "tls.ca\n"), "line 1: not a name=value line"),
        (lambda at: (at / "n1.pem").unlink(), "n1.pem cannot be read: No such file"),
        (lambda at: (at / "n1.key").chmod(0o604), "n1.key is open to all users of this machine: chmod 600"),
        (lambda at: (at / "n1.key").chmod(0o660), "n1.key can be changed by other users: chmod 600"),
        (lambda at: (at / "n1.properties").chmod(0o666), "n1.properties can be changed by other users: chmod go-w"),
        (lambda at: (at / "ca.pem").chmod(0o664), "ca.pem can be changed by other users: chmod go-w"),
        (lambda at: (at / "token").chmod(0o604), "token is open to all users"),
        (lambda at: written(at / "token", "short\n"), "token: each line must be a token of 16 to"),
        (lambda at: written(at / "token", "\n"), "token: each line must be a token"),
        (lambda at: written(at / "n1.acks", "short"), "n1.acks: each line must be a token"),
        (lambda at: shutil.copy(at / "ops.key", at / "n1.key"), "not usable for TLS"),
        (lambda at: written(at / "n1.pem", "nothing"), "not usable for TLS"),
        (lambda at: foreign(at), "not usable for TLS"),
    ],
    ids=[
        "half",
        "unknown",
        "no line",
        "gone",
        "open key",
        "key of a group",
        "open file",
        "open authority",
        "open token",
        "short",
        "empty",
        "acks",
        "key",
        "text",
        "foreign",
    ],
)
def test_invalid_files_are_refused_by_file_and_rule(folder: Path, change: Callable[[Path], object], why: str) -> None:
    token = (folder / "token").read_text().strip()
    change(folder)
    with pytest.raises(BadTrustConfig, match=why) as refused:
        TrustFile(folder / "n1.properties").now()
    assert token not in str(refused.value)


@needs_openssl
def test_a_common_name_is_not_an_identity(folder: Path, tmp_path: Path) -> None:
    """The certificate has no other names: a common name proves nothing."""
    key, request, certificate = (tmp_path / name for name in ("key", "csr", "pem"))
    for command in (
        f"openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name_of_node(ONE)}"
        f" -keyout {key} -out {request}",
        f"openssl x509 -req -in {request} -CA {folder}/ca.pem -CAkey {folder}/ca.key -set_serial 7 -out {certificate}",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    shutil.copy(key, folder / "n1.key")
    shutil.copy(certificate, folder / "n1.pem")
    assert TrustFile(folder / "n1.properties").now().node == ""


def foreign(at: Path) -> None:
    """Return a certificate of another authority."""
    make_certificates(at / "other", [("n1", ONE)], [], 2)
    for name in ("n1.pem", "n1.key"):
        shutil.copy(at / "other" / name, at / name)


def test_a_certificate_names_one_node() -> None:
    assert node_of_names(("n1", "ops.clients.ringlog")) == ""
    assert node_of_names((name_of_node(ONE).upper(), "n1")) == ONE
    for names in ((name_of_node(ONE), name_of_node(OTHER)), ("*.nodes.ringlog",), ("n1.nodes.ringlog",)):
        with pytest.raises(CertificateOfAnotherNode, match="must name exactly one node"):
            node_of_names(names)


def test_a_reachable_address_needs_certificate_and_token() -> None:
    encrypting, token = Trust(b"ca", b"c", b"k"), Trust(tokens=(TOKEN,))
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9", "unix"):
        check_listen_address(host, PLAIN_TRUST, insecure=False)
    for host in ("0.0.0.0", "::", "10.1.2.3", "no.such.host.invalid"):
        check_listen_address(host, Trust(b"ca", b"c", b"k", (TOKEN,)), insecure=False)
        check_listen_address(host, PLAIN_TRUST, insecure=True)
        for trust, lacks in ((PLAIN_TRUST, "tls.key and token.file"), (encrypting, "token.file"), (token, "tls.ca")):
            with pytest.raises(UnguardedAddress, match=lacks):
                check_listen_address(host, trust, insecure=False)
    assert not is_loopback("")


# --------------------------------------------------------------------------------------------------------- renewal


@needs_openssl
def test_replaced_files_apply_at_once(folder: Path) -> None:
    file = TrustFile(folder / "n1.properties", recheck_s=0)
    before = file.now()
    assert file.now() is before
    make_certificates(folder, [("n1", "")], [], 2)
    assert file.now().certificate == (folder / "n1.pem").read_bytes() != before.certificate
    written(folder / "token", f"{TOKEN}\nanother-token-of-many\n")
    assert file.now().tokens == (TOKEN, "another-token-of-many")
    assert file.now() is file.now()


@needs_openssl
def test_a_serial_number_is_that_of_openssl(made: Path) -> None:
    for name in ("ca", "n1", "ops"):
        shown = subprocess.run(
            ["openssl", "x509", "-noout", "-serial", "-in", made / f"{name}.pem"],
            capture_output=True,
            text=True,
            check=True,
        )
        der = ssl.PEM_cert_to_DER_cert((made / f"{name}.pem").read_text())
        assert f"{serial_of(der):x}" == shown.stdout.strip().lower().removeprefix("serial=").lstrip("0")


def test_a_list_of_revoked_certificates(tmp_path: Path) -> None:
    config = tmp_path / "t.properties"
    written(config, "revoked.file=revoked\n")
    written(tmp_path / "revoked", "# lost on Monday\n00:AB:cd\n0f12 # n2\nabc12\n\n OPS.clients.ringlog\n")
    _, found = read_trust(config)
    assert found.revoked == {"abcd", "f12", "abc12", "ops.clients.ringlog"}
    assert found.refuses(0xABCD, ())
    assert found.refuses(1, ("Ops.Clients.Ringlog",))
    assert not found.refuses(0xABC, ("clients.ringlog", "n1.nodes.ringlog"))
    assert not PLAIN_TRUST.refuses(0xABCD, ("ops.clients.ringlog",))
    for bad in ("abz", "0x12", "12 34", "ops", "-.", "ops.clients.ringlog."):
        written(tmp_path / "revoked", bad)
        with pytest.raises(BadTrustConfig, match="serial number"):
            read_trust(config)
    written(tmp_path / "revoked", "abcd", 0o666)
    with pytest.raises(BadTrustConfig, match="changed by other users"):
        read_trust(config)


def test_tokens_for_metrics_are_never_sent(tmp_path: Path) -> None:
    monitor = "a-token-of-a-monitor"
    written(tmp_path / "token", f"metrics {monitor}\n{TOKEN}\n")
    written(tmp_path / "t.properties", "token.file=token\n")
    _, found = read_trust(tmp_path / "t.properties")
    assert (found.tokens, found.monitoring_tokens) == ((TOKEN,), (TOKEN, monitor))
    assert found.headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert monitor not in repr(found)
    for bad in (f"metrics {monitor}", f"rows {monitor}\n{TOKEN}", f"metrics\n{TOKEN}", f"metrics metrics {monitor}"):
        written(tmp_path / "token", bad)
        with pytest.raises(BadTrustConfig) as refused:
            read_trust(tmp_path / "t.properties")
        assert monitor not in str(refused.value)


@needs_openssl
@pytest.mark.parametrize("change", [lambda at: (at / "token").unlink(), lambda at: another(at)], ids=["gone", "node"])
def test_bad_files_are_void(folder: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(trust_module, "_log", lambda: Said(said))
    file = TrustFile(folder / "n1.properties", recheck_s=0)
    before = file.now()
    change(folder)
    assert (file.now(), file.now(), said) == (before, before, ["trust_kept"])


def another(at: Path) -> None:
    """Return the same files of another node."""
    make_certificates(at, [("n1", OTHER)], [], 2)


class Said:
    """A log that stores messages."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def error(self, event: str, **_: object) -> None:
        self._said.append(event)


# ----------------------------------------------------------------------------------------------------------- tokens


def test_exactly_the_listed_tokens_are_accepted() -> None:
    tokens = (TOKEN, "another-token-of-many")
    for good in (f"Bearer {TOKEN}", f"bearer  {tokens[1]} "):
        assert is_admitted([good], tokens)
    for bad in (
        [],
        [f"Bearer {TOKEN}"] * 2,
        [f"Basic {TOKEN}"],
        [TOKEN],
        ["Bearer"],
        [f"Bearer {TOKEN}x"],
        ["Bearer ä"],
    ):
        assert not is_admitted(bad, tokens)
    assert is_admitted([], ())


# ------------------------------------------------------------------------------------------------------- processes


def test_an_agent_stops_before_it_serves_without_protection() -> None:
    settings = {"RINGLOG_METRICS_PORT": "9400", "RINGLOG_METRICS_HOST": "0.0.0.0", TRUST_VARIABLE: ""}
    ended = subprocess.run(
        [sys.executable, "-m", "ringlog.agents", "keeper"],
        env={"PATH": "/usr/bin:/bin", **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 4
    assert "unguarded_address" in ended.stderr + ended.stdout


def test_acknowledgement_keys_are_created_alone_in_the_order_of_the_master(tmp_path: Path) -> None:
    """Neither an authority nor openssl is necessary."""
    folder = tmp_path / "keys"
    assert make_certificates(folder, [], [], 2, keys=[("n1", ONE)]) == ()
    (master,) = (folder / "acks.master").read_text().split()
    assert sorted(path.name for path in folder.iterdir()) == ["acks.master", "n1.acks"]
    (folder / "acks.master").write_text(f"a-later-one-of-many-letters\n{master}\n")
    make_certificates(folder, [], [], 2, keys=[("n1", ONE)])
    keys = [key_of("a-later-one-of-many-letters", ONE), key_of(master, ONE)]
    assert (folder / "n1.acks").read_text().split() == keys
    with pytest.raises(CertificatesFailed, match="UUID"):
        make_certificates(folder, [], [], 2, keys=[("n1", "")])


# ------------------------------------------------------------------------------------------------ end of an authority


@needs_openssl
def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    at = tmp_path / "made"
    make_certificates(at, [("n1", ONE)], [], 2, ca_days=3)
    with pytest.raises(CertificatesFailed, match=r"expires on .*: pass --days 2 at most, or .* --new-ca"):
        make_certificates(at, [("n1", ONE)], [], 365)


@needs_openssl
def test_an_authority_outlives_its_certificates_by_default(tmp_path: Path) -> None:
    make_certificates(tmp_path / "made", [("n1", ONE)], [], 365)
    assert TrustFile(tmp_path / "made" / "n1.properties").now().expires == pytest.approx(
        time.time() + 365 * DAY, abs=600
    )


@needs_openssl
def test_a_process_shows_the_end_of_its_authority_if_that_is_sooner(folder: Path) -> None:
    """A user's own authority may sign certificates that outlive it."""
    subprocess.run(
        [
            "openssl",
            "x509",
            "-in",
            folder / "ca.pem",
            "-signkey",
            folder / "ca.key",
            "-days",
            "1",
            "-out",
            folder / "ca",
        ],
        check=True,
        capture_output=True,
    )
    (folder / "ca").replace(folder / "ca.pem")
    assert TrustFile(folder / "n1.properties").now().expires == pytest.approx(time.time() + DAY, abs=600)


@needs_openssl
def test_an_authority_is_replaced_in_steps_and_each_process_shows_its_own_end(tmp_path: Path) -> None:
    at = tmp_path / "made"
    make_certificates(at, [("n1", ONE), ("n2", OTHER)], [], 2, ca_days=3)
    add_authority(at, 30)
    assert (at / "ca.pem").read_text().count("BEGIN CERTIFICATE") == 2
    old, n1 = TrustFile(at / "n1.properties").now(), at / "n1.properties"
    assert old.expires == pytest.approx(time.time() + 2 * DAY, abs=600)
    make_certificates(at, [("n1", "")], [], 20)
    renewed = TrustFile(n1).now()
    assert (renewed.node, renewed.expires) == (ONE, pytest.approx(time.time() + 20 * DAY, abs=600))
    TrustFile(at / "n2.properties").now()  # still trusted by the old authority
    with pytest.raises(AuthorityInUse, match=r"^n2\.pem in "):
        retire_authorities(at)
    (at / "n2.pem").rename(at / "elsewhere")
    assert retire_authorities(at) == 1
    assert TrustFile(n1).now().node == ONE
    (at / "elsewhere").rename(at / "n2.pem")
    with pytest.raises(BadTrustConfig, match="not usable for TLS"):
        TrustFile(at / "n2.properties").now()
