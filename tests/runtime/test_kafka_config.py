"""One file of connection options for three libraries; an invalid option is refused with file, line and rule."""

from __future__ import annotations

import os
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from faust import SASLCredentials, SSLCredentials

from ringlog.agents.app import credentials
from ringlog.files import exposure
from ringlog.kernel.values import replace
from ringlog.runtime.kafka.config import QUIET, TIMEOUTS, VARIABLE, connection, current, spark_options, use, use_none
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.runtime.kafka.security import MODULES, PLAIN, BadKafkaConfig, Security
from ringlog.stack.java import find_java

SECRET = "the-secret"
SCRAM = MODULES["SCRAM-SHA-512"]


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


def written(folder: Path, *lines: str) -> Path:
    path = folder / "client.properties"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def read(folder: Path, *lines: str) -> Security:
    return read_kafka_config(written(folder, *lines)).security


def test_without_a_file_connections_are_plain_text() -> None:
    assert connection("b:1") == {"bootstrap.servers": "b:1", **QUIET, **TIMEOUTS}
    assert spark_options("b:1") == {"kafka.bootstrap.servers": "b:1"}
    assert current().security == PLAIN
    assert PLAIN.ssl_context() is None
    assert credentials(PLAIN) is None


@pytest.mark.parametrize(
    "lines",
    [
        ("sasl.mechanism=SCRAM-SHA-512", "sasl.username=me", f"sasl.password={SECRET}"),
        ("sasl.mechanisms = scram-sha-512", "sasl.username:me", f"sasl.password = {SECRET}  "),
        ("sasl.mechanism=SCRAM-SHA-512", f'sasl.jaas.config={SCRAM} required username="me" password="{SECRET}";'),
        (
            "sasl.mechanism=SCRAM-SHA-512",
            f"sasl.jaas.config={SCRAM} required \\",
            "    username='me' \\",
            f"    password='{SECRET}';",
        ),
    ],
    ids=["librdkafka", "loosely", "java", "over lines"],
)
def test_a_login_in_any_spelling_reaches_all_three_libraries(tmp_path: Path, lines: tuple[str, ...]) -> None:
    found = read(tmp_path, "# ours", "", "security.protocol=SASL_PLAINTEXT", *lines)
    assert connection("b:1", found) == {
        "bootstrap.servers": "b:1",
        **QUIET,
        **TIMEOUTS,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": SECRET,
    }
    assert found.java() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM} required username="me" password="{SECRET}";',
    }
    spoken = credentials(found)
    assert isinstance(spoken, SASLCredentials)
    assert (spoken.protocol.value, spoken.mechanism.value) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    assert (spoken.username, spoken.password) == ("me", SECRET)
    assert SECRET not in repr(found) + repr(spoken)


def test_quotes_and_backslashes_of_a_password_are_preserved(tmp_path: Path) -> None:
    password = "a\"b\\c'd =:#"
    quoted = password.replace("\\", "\\\\")
    found = read(
        tmp_path,
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        "sasl.username=me",
        f"sasl.password={quoted}",
    )
    assert found.password == password
    line = found.java()["sasl.jaas.config"].replace("\\", "\\\\")
    again = read(tmp_path, "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.jaas.config={line}")
    assert again == found


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a self-signed certificate."""
    java = find_java()
    assert java is not None
    folder = tmp_path_factory.mktemp("pem")
    place = ["-alias", "a", "-keystore", str(folder / "a.p12"), "-storetype", "PKCS12", "-storepass", "changeit"]
    keytool = str(Path(java.path).with_name("keytool"))
    subprocess.run([keytool, "-genkeypair", *place, "-keyalg", "RSA", "-dname", "CN=a"], check=True)
    told = subprocess.run([keytool, "-exportcert", "-rfc", *place], check=True, capture_output=True)
    (folder / "ca.pem").write_bytes(told.stdout)
    (folder / "ca.pem").chmod(0o600)
    return folder / "ca.pem"


@pytest.mark.parametrize("java_like", [False, True])
def test_trust_reaches_all_three_libraries_relative_to_the_file(tmp_path: Path, pem: Path, java_like: bool) -> None:
    (tmp_path / "ca.pem").write_bytes(pem.read_bytes())
    given = ("ssl.truststore.type=PEM", "ssl.truststore.location=ca.pem") if java_like else ("ssl.ca.location=ca.pem",)
    found = read(tmp_path, "security.protocol=ssl", *given)
    path = str(tmp_path / "ca.pem")
    assert found.librdkafka() == {
        "security.protocol": "SSL",
        "ssl.ca.location": path,
        "ssl.endpoint.identification.algorithm": "https",
    }
    assert found.java() == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": path,
        "ssl.endpoint.identification.algorithm": "https",
    }
    context = found.ssl_context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert isinstance(credentials(found), SSLCredentials)


def test_the_host_check_is_optional_if_the_file_disables_it(tmp_path: Path) -> None:
    for value in ("", "none"):
        found = read(tmp_path, "security.protocol=SSL", f"ssl.endpoint.identification.algorithm={value}")
        assert found.librdkafka()["ssl.endpoint.identification.algorithm"] == "none"
        assert found.java()["ssl.endpoint.identification.algorithm"] == ""
        context = found.ssl_context()
        assert context is not None
        assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)


def test_a_certificate_and_its_key(tmp_path: Path, pem: Path) -> None:
    lines = ("security.protocol=SSL", f"ssl.key.password={SECRET}")
    one = read(tmp_path, *lines, "ssl.keystore.type=PEM", f"ssl.keystore.location={pem}")
    assert (one.certificate, one.key) == (str(pem), str(pem))
    assert one.librdkafka()["ssl.key.location"] == str(pem)
    assert one.java()["ssl.keystore.location"] == str(pem)
    other = tmp_path / "key.pem"
    other.write_text("no key")
    other.chmod(0o600)
    two = read(tmp_path, *lines, f"ssl.certificate.location={pem}", "ssl.key.location=key.pem")
    assert two.librdkafka()["ssl.key.location"] == str(other)
    with pytest.raises(BadKafkaConfig, match="one PEM"):
        two.java()
    with pytest.raises(BadKafkaConfig, match="not usable for TLS") as refused:
        two.ssl_context()
    assert SECRET not in str(refused.value) + repr(two)


@pytest.mark.parametrize(
    ("lines", "where", "rule"),
    [
        (["security.protocol=TLS"], "line 1: security.protocol", "one of PLAINTEXT"),
        (["nonsense"], "line 1", "not a name=value line"),
        (["security.protocol=SSL", "security.protocol=SSL"], "line 2", "already set in line 1"),
        (["acks=all"], "line 1: acks", "Ringlog sets the other options"),
        (["security.protocol=PLAINTEXT", "sasl.username=me"], "line 2: sasl.username", "has no effect with"),
        (["ssl.ca.location=/nowhere"], "line 1: ssl.ca.location", "has no effect with"),
        (["security.protocol=SSL", "ssl.ca.location=/nowhere"], "line 2: ssl.ca.location", "not a readable file"),
        (["security.protocol=SSL", "ssl.ca.location=a\\u0000b"], "line 2: ssl.ca.location", "not a readable file"),
        (["security.protocol=SSL", f"ssl.ca.location={'a' * 5_000}"], "line 2: ssl.ca.location", "not a readable file"),
        (["security.protocol=SSL", "ssl.truststore.location=a.jks"], "line 2: ssl.truststore.location", "only PEM"),
        (["security.protocol=SSL", "ssl.truststore.password=x"], "line 2: ssl.truststore.password", "PEM"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=GSSAPI"], "line 2: sasl.mechanism", "one of PLAIN"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"], "line 1: security.protocol", "set sasl.username"),
        (["client.dns.lookup=default"], "line 1: client.dns.lookup", "only use_all_dns_ips"),
        (["enable.ssl.certificate.verification=false"], "line 1: enable.ssl", "always verified"),
        (["security.protocol=SSL", "ssl.endpoint.identification.algorithm=x"], "line 2: ssl.endpoint", "https or"),
        (["a=\\u12"], "line 1", "four hexadecimal"),
        (["a=\\ud800"], "line 1", "four hexadecimal"),
    ],
)
def test_an_invalid_option_is_refused_by_its_line(tmp_path: Path, lines: list[str], where: str, rule: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(BadKafkaConfig) as refused:
        read_kafka_config(path)
    assert str(refused.value).startswith(f"{path}, {where}")
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    "login",
    [
        f'{SCRAM} required username="me" password="{SECRET}"',
        f'{SCRAM} sufficient username="me" password="{SECRET}";',
        f'{SCRAM} required username="me" password="{SECRET}" tokenauth="true";',
        f'{SCRAM} required username="me" password="{SECRET}" password="{SECRET}";',
        f'{MODULES["PLAIN"]} required username="me" password="{SECRET}";',
        f'{SCRAM} required username="me" pass"word="{SECRET}";',
    ],
)
def test_a_complex_login_is_refused_and_not_shown(tmp_path: Path, login: str) -> None:
    with pytest.raises(BadKafkaConfig, match=r"line 3: sasl\.jaas\.config") as refused:
        read(tmp_path, "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", f"sasl.jaas.config={login}")
    assert SECRET not in str(refused.value)


def test_an_endless_file_is_read_only_to_its_bound() -> None:
    with pytest.raises(BadKafkaConfig, match="it has more than 1,048,576 bytes"):
        read_kafka_config(Path("/dev/zero"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("nowhere", "", "bytes"):
        with pytest.raises(BadKafkaConfig, match=str(tmp_path)):
            use(tmp_path / name)
    assert os.environ[VARIABLE] == ""


def test_a_file_in_use_serves_each_client_and_child_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=me", f"sasl.password={SECRET}")
    written(tmp_path, "bootstrap.servers=b:1,c:2", *lines)
    monkeypatch.chdir(tmp_path)
    use(Path("client.properties"))
    assert os.environ[VARIABLE] == str(tmp_path / "client.properties")
    assert current().bootstrap == "b:1,c:2"
    assert connection("b:1")["sasl.password"] == SECRET
    assert spark_options("b:1")["kafka.security.protocol"] == "SASL_SSL"
    other = current().security.as_user("SASL_SSL", "SCRAM-SHA-256", "writer", "its own")
    assert connection("b:1", other)["sasl.username"] == "writer"
    with pytest.raises(BadKafkaConfig, match="no login"):
        PLAIN.as_user("SSL", "PLAIN", "a", "b")


LOGIN = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=me", "sasl.password=of the file")


def test_a_variable_overrides_the_line_for_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(written(tmp_path, "bootstrap.servers=b:1", *LOGIN))
    monkeypatch.setenv("RINGLOG_KAFKA_SASL_PASSWORD", SECRET)
    monkeypatch.setenv("RINGLOG_KAFKA_SASL_USERNAME", "")
    found = current().security
    assert (current().bootstrap, found.username, found.password) == ("b:1", "me", SECRET), (
        "an empty variable does not count"
    )
    assert connection("b:1")["sasl.password"] == SECRET
    assert f'password="{SECRET}"' in spark_options("b:1")["kafka.sasl.jaas.config"]
    spoken = credentials(found)
    assert isinstance(spoken, SASLCredentials)
    assert spoken.password == SECRET
    monkeypatch.delenv("RINGLOG_KAFKA_SASL_PASSWORD")
    assert connection("b:1")["sasl.password"] == "of the file"


def test_variables_need_no_file_and_hold_for_one_broker(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "PLAIN", "SASL_USERNAME": "me"}
    for name, value in (given | {"SASL_PASSWORD": SECRET, "SSL_CA_LOCATION": str(pem)}).items():
        monkeypatch.setenv(f"RINGLOG_KAFKA_{name}", value)
    assert current().security == Security("SASL_SSL", "PLAIN", "me", SECRET, str(pem))
    use_none()
    assert current().security == PLAIN


@pytest.mark.parametrize(
    ("lines", "variables", "wanted"),
    [
        (LOGIN, {"SASL_MECHANISMS": "SCRAM-SHA-512"}, Security("SASL_SSL", "SCRAM-SHA-512", "me", "of the file")),
        (
            LOGIN,
            {"SASL_JAAS_CONFIG": f'{MODULES["PLAIN"]} required username="other" password="{SECRET}";'},
            Security("SASL_SSL", "PLAIN", "other", SECRET),
        ),
        (
            (*LOGIN[:2], f'sasl.jaas.config={MODULES["PLAIN"]} required username="me" password="of the file";'),
            {"SASL_USERNAME": "other", "SASL_PASSWORD": SECRET},
            Security("SASL_SSL", "PLAIN", "other", SECRET),
        ),
        (
            (*LOGIN, "ssl.truststore.type=PEM", "ssl.truststore.location=gone.pem"),
            {"SSL_CA_LOCATION": "{pem}"},
            Security("SASL_SSL", "PLAIN", "me", "of the file", "{pem}"),
        ),
    ],
    ids=["mechanism", "login of java", "login of librdkafka", "trust"],
)
def test_a_variable_overrides_another_spelling_of_the_option(
    tmp_path: Path, pem: Path, lines: tuple[str, ...], variables: dict[str, str], wanted: Security
) -> None:
    given = [(f"RINGLOG_KAFKA_{name}", value.replace("{pem}", str(pem))) for name, value in variables.items()]
    found = read_kafka_config(written(tmp_path, *lines), given).security
    assert found == replace(wanted, ca=wanted.ca.replace("{pem}", str(pem)))


@pytest.mark.parametrize(
    ("variables", "where", "rule"),
    [
        ({"ACKS": SECRET}, "RINGLOG_KAFKA_ACKS: acks", "Ringlog sets the other options"),
        ({"SASL_PASWORD": SECRET}, "RINGLOG_KAFKA_SASL_PASWORD: sasl.pasword", "by name and password"),
        ({"sasl_password": SECRET}, "RINGLOG_KAFKA_sasl_password: sasl.password", "in capital letters"),
        ({"BOOTSTRAP_SERVERS": "b:1"}, "RINGLOG_KAFKA_BOOTSTRAP_SERVERS", "RINGLOG_BOOTSTRAP_SERVERS"),
        ({"SASL_PASSWORD": SECRET}, "RINGLOG_KAFKA_SASL_PASSWORD", "has no effect with security.protocol PLAINTEXT"),
        ({"SECURITY_PROTOCOL": "TLS"}, "RINGLOG_KAFKA_SECURITY_PROTOCOL", "one of PLAINTEXT"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "ca.pem"}, "RINGLOG_KAFKA_SSL_CA_LOCATION", "absolute path"),
        ({"SECURITY_PROTOCOL": "SASL_SSL", "SASL_PASSWORD": SECRET}, "RINGLOG_KAFKA_SECURITY_PROTOCOL", "one of PLAIN"),
        (
            {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_MECHANISM": "PLAIN", "SASL_JAAS_CONFIG": SECRET},
            "RINGLOG_KAFKA_SASL_JAAS_CONFIG",
            "without other options",
        ),
    ],
)
def test_a_wrong_variable_is_refused_by_name_and_not_shown(variables: dict[str, str], where: str, rule: str) -> None:
    with pytest.raises(BadKafkaConfig) as refused:
        read_kafka_config(None, [(f"RINGLOG_KAFKA_{name}", value) for name, value in variables.items()])
    assert str(refused.value).startswith(where)
    assert rule in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o604, "is open to all users"),
        (0o644, "is open to all users"),
        (0o660, "can be changed by other users"),
        (0o640, "is open to its group"),
        (0o610, "is open to its group"),
    ],
)
def test_a_file_with_a_password_is_closed_to_others(
    mode: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=a", "sasl.password=b")
    path.chmod(mode)
    with pytest.raises(BadKafkaConfig, match=why):
        read_kafka_config(path)
    path.chmod(0o600)
    assert read_kafka_config(path).security.password == "b"
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid:
        with pytest.raises(BadKafkaConfig, match="belongs to another user"):
            read_kafka_config(path)
    else:
        path.chmod(0o640)
        assert read_kafka_config(path).security.password == "b", "a service may be in the group of a mounted secret"


def test_files_that_others_own_or_open_are_refused(tmp_path: Path) -> None:
    """A secret of root may be open to a group, since a service is in the group of a mounted secret."""

    def found(mode: int, owner: int) -> os.stat_result:
        return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))

    own, path = os.geteuid(), tmp_path / "key"
    assert exposure(path, found(0o600, own), is_secret=True) == ""
    assert exposure(path, found(0o644, own), is_secret=False) == ""
    assert "its group" in exposure(path, found(0o640, own), is_secret=True)
    for is_secret in (True, False):
        assert "belongs to another user" in exposure(path, found(0o600, own + 1), is_secret=is_secret)
        assert "changed by other users" in exposure(path, found(0o620, 0), is_secret=is_secret)
    assert "all users" in exposure(path, found(0o604, 0), is_secret=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_private_key_for_kafka_is_closed_to_others(mode: int, tmp_path: Path) -> None:
    pem = tmp_path / "key.pem"
    pem.write_text("a key")
    pem.chmod(mode)
    lines = "security.protocol=SSL", "ssl.keystore.type=PEM", "ssl.keystore.location=key.pem"
    with pytest.raises(BadKafkaConfig, match=r"ssl\.keystore\.location: .*key.pem"):
        read(tmp_path, *lines)
    pem.chmod(0o600)
    read(tmp_path, *lines)


def test_a_file_without_a_password_may_be_read_but_not_changed_by_others(tmp_path: Path) -> None:
    path = written(tmp_path, "security.protocol=SSL")
    path.chmod(0o644)
    read_kafka_config(path)
    path.chmod(0o646)
    with pytest.raises(BadKafkaConfig, match="can be changed by other users"):
        read_kafka_config(path)
