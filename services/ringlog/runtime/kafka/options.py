"""The accepted options of a client.properties file: names, alternative names, and their combined meaning.

An option comes from a line of the file or from a variable: ``RINGLOG_KAFKA_`` and the option's name in capitals, with
``_`` for dots. A variable overrides the line, also a line with an alternative name of the same option. Options that
some of the client libraries lack are rejected.

Invariant: errors name the rule and the file and line, or the variable. They never contain a value, because it may be a
secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from ringlog.files import PROPERTIES_BYTES_MAX, exposure, read_text
from ringlog.kernel.values import Value, replace
from ringlog.runtime.kafka import oauth
from ringlog.runtime.kafka.oauth import OAuth
from ringlog.runtime.kafka.properties import BadPropertyLine, Property, read_properties
from ringlog.runtime.kafka.security import MODULES, PLAIN, PROTOCOLS, BadKafkaConfig, Security

PREFIX = "RINGLOG_KAFKA_"


class KafkaConfig(Value):
    """The connection settings from file and variables. ``bootstrap``: brokers named by the file, may be empty."""

    security: Security = PLAIN
    bootstrap: str = ""


def read_kafka_config(path: Path | None, variables: Iterable[tuple[str, str]] = ()) -> KafkaConfig:
    """Read file and variables, with all checks that need no broker. Raises BadKafkaConfig."""
    return _Reader(path, () if path is None else _lines(path), variables).config()


def _lines(path: Path) -> tuple[Property, ...]:
    try:
        found = path.stat()
        lines = read_properties(read_text(path.absolute(), PROPERTIES_BYTES_MAX))
        has_secret = any(line.name in _SECRETS for line in lines)
        if stat.S_ISREG(found.st_mode) and (why := exposure(path, found, is_secret=has_secret)):
            raise BadKafkaConfig(why)
        return lines
    except BadPropertyLine as bad:
        raise BadKafkaConfig(f"{path}, line {bad.number}: {bad.rule}") from bad
    except UnicodeDecodeError as error:
        raise BadKafkaConfig(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise BadKafkaConfig(f"{path} cannot be read: {error.strerror or error}") from error


class _Reader:
    """A translation of options to a configuration. Every error names the line or the variable."""

    def __init__(self, path: Path | None, lines: Iterable[Property], variables: Iterable[tuple[str, str]]) -> None:
        self._path = path
        self._lines = {line.name: line for line in lines}
        self._variables = dict[str, str]()
        """Option to the name of its variable."""
        given = {_named_by(variable): (variable, value) for variable, value in variables}
        for name in given:
            for same in (name, *_SAME.get(name, ())):
                self._lines.pop(same, None)
        for name, (variable, value) in given.items():
            self._lines[name] = Property(0, name, value)
            self._variables[name] = variable

    def config(self) -> KafkaConfig:
        for name in self._lines:
            if name not in _ALLOWED:
                self._refuse(name, _why_not(name))
            if name in self._variables and _BY_VARIABLE.get(self._variables[name]) != name:
                self._refuse(name, "write the name of the variable in capital letters")
        if "bootstrap.servers" in self._variables:
            self._refuse("bootstrap.servers", "set the brokers with RINGLOG_BOOTSTRAP_SERVERS")
        self._only("client.dns.lookup", "use_all_dns_ips")
        return KafkaConfig(self._security(), self._text("bootstrap.servers"))

    def _security(self) -> Security:
        protocol = self._text("security.protocol").upper() or "PLAINTEXT"
        if protocol not in PROTOCOLS:
            self._refuse("security.protocol", f"must be one of {', '.join(PROTOCOLS)}")
        found = Security(protocol=protocol)
        for family, wanted in (("sasl.", found.logs_in), ("ssl.", found.encrypted)):
            for name in self._lines:
                if name.startswith(family) and not wanted:
                    self._refuse(name, f"it has no effect with security.protocol {protocol}")
        if found.logs_in:
            found = self._login(found)
        return self._trust(found) if found.encrypted else found

    def _login(self, found: Security) -> Security:
        names = ("sasl.mechanism", "sasl.mechanisms")
        mechanism = (self._text(names[0]) or self._text(names[1])).upper()
        if mechanism == oauth.MECHANISM:
            return replace(found, mechanism=mechanism, oauth=self._oauth())
        if mechanism not in MODULES:
            options_text = next((name for name in names if name in self._lines), "security.protocol")
            self._refuse(options_text, f"sasl.mechanism must be one of {', '.join((*MODULES, oauth.MECHANISM))}")
        self._none_of(_OF_OAUTH, f"it has no effect with sasl.mechanism {mechanism}")
        if "sasl.jaas.config" in self._lines:
            if "sasl.username" in self._lines or "sasl.password" in self._lines:
                self._refuse(
                    "sasl.jaas.config", "it contains user name and password: remove sasl.username and sasl.password"
                )
            username, password = self._jaas(mechanism)
        else:
            username, password = self._text("sasl.username"), self._text("sasl.password")
        if not username or not password:
            self._refuse("security.protocol", "set sasl.username and sasl.password (or sasl.jaas.config)")
        return replace(found, mechanism=mechanism, username=username, password=password)

    def _jaas(self, mechanism: str) -> tuple[str, str]:
        matched = _JAAS.fullmatch(self._text("sasl.jaas.config"))
        options = {} if matched is None else _jaas_options(matched["options"])
        if matched is None or options is None or options.keys() != {"username", "password"}:
            self._refuse("sasl.jaas.config", 'must be MODULE required username="…" password="…"; without other options')
        if matched["module"] != MODULES[mechanism]:
            self._refuse("sasl.jaas.config", f"the module of {mechanism} must be {MODULES[mechanism]}")
        return options["username"], options["password"]

    def _oauth(self) -> OAuth:
        """Return the token source: a user function, or OIDC with librdkafka's or Java's options."""
        handler = self._text("sasl.login.callback.handler.class")
        self._none_of(("sasl.username", "sasl.password"), "it has no effect with sasl.mechanism OAUTHBEARER")
        hook = self._text("ringlog.oauth.hook")
        if hook:
            if oauth.HOOK.fullmatch(hook) is None:
                self._refuse("ringlog.oauth.hook", "MODULE:FUNCTION")
            self._none_of(
                (*_OF_OIDC, "sasl.jaas.config"), "it has no effect with ringlog.oauth.hook, which returns the tokens"
            )
            if handler and _CLASS.fullmatch(handler) is None:
                self._refuse("sasl.login.callback.handler.class", "must be the name of a class")
            return OAuth(hook=hook, java_handler=handler)
        if handler not in ("", *oauth.OIDC_HANDLERS):
            self._refuse("sasl.login.callback.handler.class", "the Python clients also need ringlog.oauth.hook")
        if self._text("sasl.oauthbearer.method", "oidc").lower() != "oidc":
            self._refuse("sasl.oauthbearer.method", "must be oidc; for other methods set ringlog.oauth.hook")
        given = self._oidc_jaas() if "sasl.jaas.config" in self._lines else {}
        name = self._text("sasl.oauthbearer.client.id") or given.get("clientId", "")
        secret = self._text("sasl.oauthbearer.client.secret") or given.get("clientSecret", "")
        endpoint = self._text("sasl.oauthbearer.token.endpoint.url")
        if not endpoint or not name or not secret:
            wanted = "sasl.oauthbearer.token.endpoint.url, .client.id and .client.secret, or ringlog.oauth.hook"
            self._refuse("sasl.mechanism", f"set {wanted}")
        if _ENDPOINT.fullmatch(endpoint) is None:
            self._refuse("sasl.oauthbearer.token.endpoint.url", "must be https://host/path, or http:// on this machine")
        return OAuth(endpoint, name, secret, self._text("sasl.oauthbearer.scope") or given.get("scope", ""))

    def _oidc_jaas(self) -> dict[str, str]:
        matched = _JAAS.fullmatch(self._text("sasl.jaas.config"))
        options = None if matched is None else _jaas_options(matched["options"])
        if matched is None or options is None or not options.keys() <= {"clientId", "clientSecret", "scope"}:
            self._refuse(
                "sasl.jaas.config",
                'must be MODULE required clientId="…" clientSecret="…" scope="…"; without other options',
            )
        if matched["module"] != oauth.MODULE:
            self._refuse("sasl.jaas.config", f"the module of {oauth.MECHANISM} must be {oauth.MODULE}")
        return options

    def _none_of(self, names: Iterable[str], rule: str) -> None:
        for name in names:
            if name in self._lines:
                self._refuse(name, rule)

    def _trust(self, found: Security) -> Security:
        ca = self._pem("ssl.ca.location") or self._store("ssl.truststore")
        store = self._store("ssl.keystore")
        certificate = self._pem("ssl.certificate.location") or store
        key = self._pem("ssl.key.location") or store
        if bool(certificate) != bool(key):
            given = "ssl.certificate.location" if certificate else "ssl.key.location"
            self._refuse(given, "set certificate and key together")
        checked = self._text("ssl.endpoint.identification.algorithm", "https").lower()
        if checked not in ("https", "none", ""):
            self._refuse("ssl.endpoint.identification.algorithm", "must be https or empty")
        return replace(
            found,
            ca=ca,
            certificate=certificate,
            key=key,
            key_password=self._text("ssl.key.password"),
            host_checked=checked == "https",
        )

    def _store(self, kind: str) -> str:
        location, type_ = f"{kind}.location", f"{kind}.type"
        if (location in self._lines or type_ in self._lines) and self._text(type_).upper() != "PEM":
            options_text = location if location in self._lines else type_
            self._refuse(options_text, f"only PEM files are supported: convert the file, and set {type_}=PEM")
        return self._pem(location)

    def _pem(self, name: str) -> str:
        """Return the path of a readable file. A relative path in a line begins at the folder of the file."""
        given = self._text(name)
        if not given:
            return ""
        if name in self._variables and not os.path.isabs(given):
            self._refuse(name, "a variable must contain an absolute path")
        path = Path("/" if self._path is None else self._path.absolute().parent, given)
        try:
            readable = path.is_file() and os.access(path, os.R_OK)
            why = exposure(path, path.stat(), is_secret=name in _PRIVATE_KEYS) if readable else ""
        except OSError:  # for example, a name that is too long
            readable = False
        if not readable:
            self._refuse(name, f"{path} is not a readable file")
        if why:
            self._refuse(name, why)
        return str(path)

    def _only(self, name: str, value: str) -> None:
        if self._text(name, value) != value:
            self._refuse(name, f"only {value}")

    def _text(self, name: str, default: str = "") -> str:
        line = self._lines.get(name)
        return default if line is None else line.value

    def _refuse(self, name: str, rule: str) -> NoReturn:
        line = self._lines.get(name)
        if name in self._variables:
            place = self._variables[name]
        elif self._path is None:
            place = f"the variables {PREFIX}…"
        else:
            place = str(self._path) if line is None else f"{self._path}, line {line.number}"
        raise BadKafkaConfig(f"{place}: {name}: {rule}")


_SECRETS = frozenset({"sasl.jaas.config", "sasl.oauthbearer.client.secret", "sasl.password", "ssl.key.password"})
_PRIVATE_KEYS = frozenset({"ssl.key.location", "ssl.keystore.location"})
_ALLOWED = frozenset(
    {
        "bootstrap.servers",
        "client.dns.lookup",
        "ringlog.oauth.hook",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_OF_OIDC = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)
_OF_OAUTH = (*_OF_OIDC, "ringlog.oauth.hook", "sasl.login.callback.handler.class")
_CLASS = re.compile(r"[A-Za-z_][\w.$]*")
_ENDPOINT = re.compile(r"(?:https://[\w.-]+|http://(?:localhost|127\.0\.0\.1))(?::\d{1,5})?(?:/[\w./~%-]*)?")
_SAME: Mapping[str, tuple[str, ...]] = {
    "sasl.jaas.config": ("sasl.username", "sasl.password"),
    "sasl.mechanism": ("sasl.mechanisms",),
    "sasl.mechanisms": ("sasl.mechanism",),
    "sasl.password": ("sasl.jaas.config",),
    "sasl.username": ("sasl.jaas.config",),
    "ssl.ca.location": ("ssl.truststore.location", "ssl.truststore.type"),
    "ssl.certificate.location": ("ssl.keystore.location", "ssl.keystore.type"),
    "ssl.key.location": ("ssl.keystore.location", "ssl.keystore.type"),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),
    "ssl.truststore.location": ("ssl.ca.location",),
}
"""Alternative names of options. A variable also overrides lines with these."""
_BY_VARIABLE: Mapping[str, str] = {PREFIX + name.upper().replace(".", "_"): name for name in _ALLOWED}
_JAAS = re.compile(r"\s*(?P<module>[\w.$]+)\s+required(?P<options>(?:\s.*)?);\s*", re.DOTALL)
_QUOTED = r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w.@+-]+))"""
_JAAS_OPTION = re.compile(rf"\s*(\w+)\s*=\s*{_QUOTED}(?=\s|$)", re.DOTALL)


def _jaas_options(text: str) -> dict[str, str] | None:
    """Return the options of a login module. None if they cannot be parsed, or one is given twice."""
    found: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        matched = _JAAS_OPTION.match(text, at)
        if matched is None or matched[1] in found:
            return None
        value = next(group for group in matched.groups()[1:] if group is not None)
        found[matched[1]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        at = matched.end()
    return found


def _named_by(variable: str) -> str:
    """Return the option name of a variable, whether the option exists or not."""
    return _BY_VARIABLE.get(variable) or variable.removeprefix(PREFIX).lower().replace("_", ".")


def _why_not(name: str) -> str:
    """Return why an option is rejected."""
    for begins, why in _REFUSED.items():
        if name.startswith(begins):
            return why
    return "not a connection option; Ringlog sets the other options: remove the line"


_REFUSED: Mapping[str, str] = {
    "sasl.": f"use a login by name and password ({', '.join(MODULES)}) or by token ({oauth.MECHANISM})",
    "ssl.truststore.": "pass the CA certificates as a PEM file: ssl.ca.location, or ssl.truststore.type=PEM",
    "ssl.keystore.": "pass the client's certificate and key as a PEM file: ssl.keystore.type=PEM",
    "ssl.": "not supported by all three Kafka clients of Ringlog: remove the line",
    "enable.ssl.certificate.verification": "certificates are always verified: set ssl.ca.location",
}
