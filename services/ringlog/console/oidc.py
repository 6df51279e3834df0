"""An identity provider: who a log-in or an access token names, by OpenID Connect.

A browser brings a code (``console.logging_in``), which this module exchanges for an ID token. A program brings an
access token, which is a JWT. Both are signed with a key that the provider publishes.

Invariants: only asymmetric algorithms are accepted. A token counts for one audience: ID tokens have the client id, and
access tokens another name, so neither replaces the other. A user needs one of the claims ``allow``. Every answer of
the provider has a bound in bytes and time, and redirects are not followed. Unknown key ids cause at most one
request in ``RETRY_S``. No error or ``repr`` contains a token or a secret.

Source: OpenID Connect Core 1.0 (3.1.3.7), RFC 7636, RFC 9068, RFC 9700.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from ringlog.console.access import NotLoggedIn
from ringlog.kernel.values import HidingValue, Value
from ringlog.runtime.kafka.properties import BadPropertyLine, read_properties
from ringlog.runtime.trust import BadTrustConfig, is_loopback, secret_lines

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
SKEW_S: Final = 60
"""Largest accepted difference between the clocks of console and provider, in seconds."""
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 64
RSA_BITS_MIN: Final = 2048
FRESH_S, STALE_S = 3_600.0, 24 * 3_600.0
"""Ages of the provider's keys: when they are read again, and when they are no longer used."""
RETRY_S: Final = 10.0
"""Seconds between two attempts to read keys."""
WELL_KNOWN: Final = "/.well-known/openid-configuration"
ALLOW: Final = "allow."
OPTIONS: Final = ("issuer", "client.id", "client.secret", "audience", "user.claim", "scope", "ca.file")
_NAME: Final = re.compile(r"\S{1,200}")
_ERROR: Final = re.compile(r"[a-z_]{1,40}")


class OidcConfig(HidingValue):
    """The provider, and the admitted users.

    Attributes:
        audience: The audience of access tokens; empty: programs cannot use them.
        user_claim: The claim with the user's name.
        allow: Claims with their admitted values. A user needs one of them.
        ca: File of authorities for the provider's certificate; None: those of the system.
    """

    HIDDEN = ("client_secret",)

    issuer: str
    client_id: str
    allow: tuple[tuple[str, frozenset[str]], ...]
    client_secret: str = ""
    audience: str = ""
    user_claim: str = "preferred_username"
    scope: str = "openid profile email"
    ca: Path | None = None


def read_oidc(path: Path) -> OidcConfig:
    """Return the configuration in a file of properties that only its owner can read. Raises BadTrustConfig."""
    try:
        found = {one.name: one.value for one in read_properties("\n".join(secret_lines(path)))}
    except BadPropertyLine as bad:
        raise BadTrustConfig(f"{path}: {bad}") from bad
    allow = {name.removeprefix(ALLOW): value for name, value in found.items() if name.startswith(ALLOW)}
    options = {name: value for name, value in found.items() if not name.startswith(ALLOW)}
    admitted = tuple((name, frozenset(filter(None, map(str.strip, text.split(","))))) for name, text in allow.items())
    issuer, client_id, audience = (options.get(name, "") for name in ("issuer", "client.id", "audience"))
    for is_wrong, rule in (
        (unknown := sorted(options.keys() - set(OPTIONS)), f"{', '.join(unknown)[:80]}: not an option"),
        (not "".join([*found, *found.values()]).isascii(), r"write other characters than ASCII as \uXXXX"),
        (not _is_secure(issuer), "issuer: must be an https URL"),
        (not client_id, "client.id is missing"),
        (not all(values for _, values in admitted), f"{ALLOW}CLAIM: must have a value"),
        (not admitted, f"{ALLOW}CLAIM=VALUE is missing, so each user of the provider could log in"),
        (audience == client_id, "audience: must differ from client.id, so that an ID token is no access token"),
        ("openid" not in options.get("scope", "openid").split(), "scope: must contain openid"),
    ):
        if is_wrong:
            raise BadTrustConfig(f"{path}: {rule}")
    given: dict[str, Any] = {name: options[name] for name in ("scope", "audience") if name in options}
    if "user.claim" in options:
        given["user_claim"] = options["user.claim"]
    ca = (path.parent / options["ca.file"]) if "ca.file" in options else None
    return OidcConfig(issuer, client_id, admitted, options.get("client.secret", ""), ca=ca, **given)


def _is_secure(url: object) -> bool:
    """Return True for an https URL, or an http URL of the loopback interface."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or not parts.hostname or parts.fragment:
            return False
        return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
    except ValueError:
        return False


class ProviderKey(Value):
    """A public key of the provider. ``algorithm``: the only one that it serves; empty: those of its type."""

    id: str
    algorithm: str
    public: Any


class ProviderMetadata(Value):
    """Published addresses and keys of the provider. ``read_at``: seconds of the monotonic clock."""

    authorize: str
    token: str
    keys: tuple[ProviderKey, ...]
    read_at: float


def keys_in(document: Mapping[str, Any]) -> tuple[ProviderKey, ...]:
    """Return the public keys for signatures in a key set (JWKS). Others are skipped."""
    found: list[ProviderKey] = []
    given = document.get("keys")
    for one in given[:KEYS_MAX] if isinstance(given, list) else ():
        if not isinstance(one, dict) or one.get("kty") not in ("RSA", "EC", "OKP") or one.get("use", "sig") != "sig":
            continue
        try:
            public = jwt.PyJWK.from_dict({name: one[name] for name in one if name not in ("d", "key_ops")}).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(public, RSAPublicKey) or public.key_size >= RSA_BITS_MIN:
            found.append(ProviderKey(str(one.get("kid", "")), str(one.get("alg", "")), public))
    return tuple(found)


def claims_of(token: str, keys: tuple[ProviderKey, ...], issuer: str, audience: str) -> dict[str, Any]:
    """Return the claims of a signed token after all checks that need no state. Raises jwt.PyJWTError."""
    header = jwt.get_unverified_header(token)
    algorithm, key_id = header.get("alg"), header.get("kid")
    fitting = [key for key in keys if key_id in (None, key.id) and key.algorithm in ("", algorithm)]
    required = ["iss", "aud", "exp", "iat", "sub"]
    last: jwt.PyJWTError = jwt.InvalidKeyError("no key of the provider has this id and algorithm")
    for key in fitting:
        try:
            return jwt.decode(
                token,
                key.public,
                algorithms=list(ALGORITHMS),
                issuer=issuer,
                audience=audience,
                leeway=SKEW_S,
                options={"require": required},
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError) as error:
            last = error
        except (TypeError, ValueError) as error:  # the key has another type than the algorithm
            last = jwt.InvalidKeyError(type(error).__name__)
    raise last


def admitted_user(config: OidcConfig, claims: Mapping[str, Any]) -> str:
    """Return the name of an admitted user. Raises NotLoggedIn."""
    if not any(_values(claims, name) & values for name, values in config.allow):
        names = ", ".join(name for name, _ in config.allow)
        raise NotLoggedIn("user_not_allowed", f"this console admits other users only. It checks: {names}")
    found = sorted(_values(claims, config.user_claim))
    if len(found) != 1 or not _NAME.fullmatch(found[0]) or not found[0].isprintable():
        raise NotLoggedIn("user_not_allowed", f"the claim {config.user_claim} is not one name without blanks")
    return found[0]


def _values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts of a claim. An address counts only after the provider has verified it."""
    if name == "email" and claims.get("email_verified") is not True:
        return frozenset()
    found = claims.get(name)
    return frozenset(one for one in (found if isinstance(found, list) else [found]) if isinstance(one, str))


class Provider:
    """The provider's metadata, and the checks of its tokens. For one event loop."""

    def __init__(self, config: OidcConfig) -> None:
        self.config = config
        self._known: ProviderMetadata | None = None
        self.reading: asyncio.Task[None] | None = None
        self._asked = float("-inf")
        self._failure = "the identity provider has not answered yet"
        try:
            self._tls = ssl.create_default_context(cafile=config.ca)
        except (OSError, ValueError) as error:
            raise BadTrustConfig(f"{config.ca} has no certificates of authorities: {type(error).__name__}") from error

    async def metadata(self, key_id: str | None = None) -> ProviderMetadata:
        """Return the provider's addresses and keys, with a key if it exists. Raises NotLoggedIn if it is unreachable.

        Known keys are used while newer ones are read. So log-ins and tokens survive a short absence of the provider.
        """
        now, known = time.monotonic(), self._known
        has_key = known is not None and (key_id is None or any(key.id == key_id for key in known.keys))
        is_fresh = has_key and known is not None and now - known.read_at < FRESH_S
        is_idle = self.reading is None or self.reading.done()
        if not is_fresh and is_idle and now - self._asked >= RETRY_S:
            self._asked, self.reading = now, asyncio.ensure_future(self._read())
        is_usable = has_key and known is not None and now - known.read_at < STALE_S
        if not is_usable and self.reading is not None:
            await asyncio.wait([self.reading])
        known = self._known
        if known is None or now - known.read_at >= STALE_S or (self._failure and not has_key):
            raise NotLoggedIn("provider_unreachable", f"{self._failure}. Try again in {RETRY_S:.0f} s")
        return known

    async def _read(self) -> None:
        """Read metadata and keys. A failure stays as text."""
        try:
            issuer = self.config.issuer
            document = await self._ask(issuer.rstrip("/") + WELL_KNOWN)
            if document.get("issuer") != issuer:
                raise _Unusable("names another issuer than the configured one")
            urls = [document.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
            if not all(map(_is_secure, urls)):
                raise _Unusable("does not give three https addresses")
            authorize, token, jwks = map(str, urls)
            keys = keys_in(await self._ask(jwks))
            if not keys:
                raise _Unusable("has no key for signatures")
            self._known, self._failure = ProviderMetadata(authorize, token, keys, time.monotonic()), ""
        except _Unusable as error:
            self._failure = f"the identity provider {error}"

    async def _ask(self, url: str, form: Mapping[str, str] | None = None, **headers: str) -> dict[str, Any]:
        """Return the JSON object that the provider answers. Raises _Unusable."""
        body = b""
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx.AsyncClient(verify=self._tls, timeout=TIMEOUT_S) as http,
                http.stream(
                    "GET" if form is None else "POST",
                    url,
                    content=None if form is None else urlencode(form),
                    headers={"accept": "application/json"}
                    | ({} if form is None else {"content-type": "application/x-www-form-urlencoded"})
                    | headers,
                ) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise _Unusable("sends too much")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
            raise _Unusable(f"does not answer ({type(error).__name__})") from error
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if answer.status_code != 200 or not isinstance(found, dict):
            reason = found.get("error") if isinstance(found, dict) else None
            is_code = isinstance(reason, str) and _ERROR.fullmatch(reason)
            raise _Unusable(f"answers {answer.status_code}", reason if is_code and isinstance(reason, str) else "")
        return found

    async def authorization(self, redirect: str, state: str, nonce: str, challenge: str) -> str:
        """Return the address that a browser goes to for a log-in. Raises NotLoggedIn."""
        authorize = (await self.metadata()).authorize
        query = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "redirect_uri": redirect,
            "scope": self.config.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{authorize}{'&' if urlsplit(authorize).query else '?'}{urlencode(query)}"

    async def user_of_code(self, code: str, redirect: str, verifier: str, nonce: str) -> str:
        """Exchange the code of a log-in, and return the user. Raises NotLoggedIn."""
        config, known = self.config, await self.metadata()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": verifier}
        headers: dict[str, str] = {}
        if config.client_secret:
            login = f"{quote(config.client_id, '')}:{quote(config.client_secret, '')}"
            headers["authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        else:
            form["client_id"] = config.client_id
        try:
            answer = await self._ask(known.token, form, **headers)
        except _Unusable as error:
            if error.code:
                raise NotLoggedIn("login_refused", f"the identity provider answers {error.code}") from error
            raise NotLoggedIn("provider_unreachable", f"the identity provider {error}") from error
        claims = await self._claims(str(answer.get("id_token", "")), config.client_id, "bad_id_token")
        shown = claims.get("nonce")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), nonce.encode()):
            raise NotLoggedIn("bad_id_token", "the ID token belongs to another log-in")
        if claims.get("azp", config.client_id) != config.client_id:
            raise NotLoggedIn("bad_id_token", "the ID token was issued to another client")
        return admitted_user(config, claims)

    async def user_of_bearer(self, token: str) -> str:
        """Return the user of an access token. Raises NotLoggedIn."""
        if not self.config.audience:
            raise NotLoggedIn("not_authenticated", "this console accepts no access tokens: its audience is not set")
        return admitted_user(self.config, await self._claims(token, self.config.audience, "not_authenticated"))

    async def _claims(self, token: str, audience: str, code: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError("the algorithm is not an asymmetric one")
            known = await self.metadata(header.get("kid"))
            return claims_of(token, known.keys, self.config.issuer, audience)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            # The text of an error may quote the token.
            raise NotLoggedIn(code, f"the token is refused: {type(error).__name__}") from error


class _Unusable(Exception):
    """An answer that cannot be used. ``code``: the error code of OAuth that it contains."""

    def __init__(self, what: str, code: str = "") -> None:
        super().__init__(what)
        self.code = code
