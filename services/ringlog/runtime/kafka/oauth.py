"""Broker login with a token (SASL/OAUTHBEARER), for each of the three client libraries.

A token comes from one of two sources. An identity provider issues it for a client id and secret (OIDC,
``client_credentials``): librdkafka and Java implement that, and this module does it for aiokafka. Or a function of the
user returns it, ``ringlog.oauth.hook``:

    def token() -> tuple[str, float]:
        "The token, and its expiry in seconds since 1970."

Python clients call this function in their threads. The Java client, which Spark uses, needs a Java class instead.

Invariant: no error, log or ``repr`` of this module contains a token or a secret. An exception of the user's function is
reported by its type only.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.values import HidingValue

MECHANISM: Final = "OAUTHBEARER"
MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OIDC_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
OIDC_HANDLERS: Final = (
    OIDC_HANDLER,
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
"""Java's class for OIDC, and its name in earlier Kafka releases."""
ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""A JVM property. Without it, Kafka's Java client contacts no identity provider (since 4.0)."""
HOOK: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""The characters that RFC 6750 allows in a token."""


class NoToken(Exception):
    """No token is available now."""


class Token(HidingValue):
    """A token. ``ends`` is its expiry in seconds since 1970."""

    HIDDEN = ("value",)

    value: str
    ends: float


class OAuth(HidingValue):
    """The source of tokens: a ``hook`` (MODULE:FUNCTION) with ``java_handler`` for Java, or the other
    fields for OIDC.
    """

    HIDDEN = ("client_secret",)

    endpoint: str = ""
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    hook: str = ""
    java_handler: str = ""

    def librdkafka(self) -> dict[str, Any]:
        """Return the options for confluent-kafka. Raises ValueError if the hook does not exist."""
        if self.hook:
            source = self.source()

            def give(_config: str) -> tuple[str, float]:
                found = source()
                return found.value, found.ends

            return {"sasl.mechanism": MECHANISM, "oauth_cb": give}
        found = {
            "sasl.mechanism": MECHANISM,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.endpoint,
            "sasl.oauthbearer.client.id": self.client_id,
            "sasl.oauthbearer.client.secret": self.client_secret,
        }
        return found | ({"sasl.oauthbearer.scope": self.scope} if self.scope else {})

    def java(self, quoted: Callable[[str], str]) -> dict[str, str]:
        """Return the options for Java clients. Raises ValueError if Java does not support them.

        ``quoted`` escapes a text for JAAS.
        """
        if self.hook:
            if not self.java_handler:
                raise ValueError(
                    "the Java client, which Spark uses, cannot call ringlog.oauth.hook: set "
                    "sasl.login.callback.handler.class to a Java class that returns tokens"
                )
            login = {"sasl.login.callback.handler.class": self.java_handler, "sasl.jaas.config": f"{MODULE} required;"}
            return {"sasl.mechanism": MECHANISM, **login}
        options = {"clientId": self.client_id, "clientSecret": self.client_secret, "scope": self.scope}
        options_text = " ".join(f'{name}="{quoted(value)}"' for name, value in options.items() if value)
        return {
            "sasl.mechanism": MECHANISM,
            "sasl.login.callback.handler.class": OIDC_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": self.endpoint,
            "sasl.jaas.config": f"{MODULE} required {options_text};",
        }

    def jvm_options(self) -> tuple[str, ...]:
        """Return the JVM options that its clients need for the login."""
        return () if self.hook else (f"-D{ALLOWED_URLS}={self.endpoint}",)

    def source(self) -> Callable[[], Token]:
        """Return a function that returns the present token, from any thread. It may block, and raises NoToken.

        Raises ValueError if the hook does not exist.
        """
        return _Kept(_hooked(self.hook) if self.hook else self._asked)

    def _asked(self) -> Token:
        """Request a token from the identity provider.

        Redirects are not followed: the secret must not go to another server.
        """
        import http.client  # slow to import, and few processes need it
        import urllib.error
        import urllib.parse
        import urllib.request

        # ``None`` makes a redirect an HTTPError.
        class Stays(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        login = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        request = urllib.request.Request(self.endpoint, urllib.parse.urlencode(form).encode(), headers)
        try:
            with urllib.request.build_opener(Stays).open(request, timeout=TIMEOUT_S) as answer:
                found: bytes = answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as error:
            error.close()
            raise NoToken(f"{self.endpoint} answers {error.code}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NoToken(f"{self.endpoint} does not answer: {type(error).__name__}") from error
        return token_in(found)


class _Kept:
    """A cached token, replaced after four fifths of its lifetime. One thread at a time requests a new one.

    The lifetime is measured from the time of issue with the monotonic clock. So a later correction of the wall clock
    does not extend it.
    """

    def __init__(self, ask: Callable[[], Token]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._token = Token("", 0)
        self._until = -math.inf

    def __call__(self) -> Token:
        with self._lock:
            if time.monotonic() >= self._until:
                self._token = self._ask()
                self._until = time.monotonic() + 0.8 * (self._token.ends - time.time())
            return self._token


def _hooked(name: str) -> Callable[[], Token]:
    module, _, function = name.partition(":")
    try:
        call = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"ringlog.oauth.hook: {name} cannot be imported: {type(error).__name__}") from error

    def ask() -> Token:
        try:
            value, ends = call()
        except Exception as error:  # user code may raise any type
            raise NoToken(f"{name} raised {type(error).__name__}") from None
        return _checked(value, ends)

    return ask


def _checked(value: object, ends: object) -> Token:
    """Check a token and its expiry. Raises NoToken."""
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        raise NoToken("the hook did not return a token")
    if isinstance(ends, bool) or not isinstance(ends, int | float) or not time.time() < ends < math.inf:
        raise NoToken("the token has expired, or has no expiry time in seconds since 1970")
    return Token(value, float(ends))


def token_in(answer: bytes) -> Token:
    """Return the token in an identity provider's response. Raises NoToken."""
    try:
        found = json.loads(answer)
        return _checked(found["access_token"], _end_of(found))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise NoToken(f"the answer of the identity provider has no token: {type(error).__name__}") from error


def _end_of(answer: dict[str, Any]) -> float:
    """Return the expiry of a provider's token: from the response, or from the token itself (a JWT)."""
    if "expires_in" in answer:
        return time.time() + float(answer["expires_in"])
    body = str(answer["access_token"]).split(".")[1]
    return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
