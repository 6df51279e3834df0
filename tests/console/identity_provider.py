"""A small OpenID Connect provider on a real port, which tests also let lie."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT, SECRET, AUDIENCE = "console", "the secret: a/b", "ringlog"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


@dataclass
class IdentityProvider:
    """A provider with one user.

    Attributes:
        keys: The signing keys by id. The last one signs.
        claims: Claims of the user, added to those of each token. None removes one.
        id_token: Replaces the ID token, if set.
        discovery: Fields that replace those of the discovery document.
        is_down: True: each request is answered 503.
        seen: The paths of the requests.
    """

    issuer: str = ""
    keys: dict[str, Any] = field(default_factory=lambda: {"k1": RSA})
    claims: dict[str, Any] = field(
        default_factory=lambda: {"preferred_username": "ann", "groups": ["staff", "operators"]}
    )
    id_token: str | None = None
    discovery: dict[str, Any] = field(default_factory=dict)
    is_down: bool = False
    seen: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def token(self, audience: str | list[str], key: Any = None, algorithm: str = "", **claims: Any) -> str:
        """Return a signed token."""
        kid, own = list(self.keys.items())[-1]
        key = own if key is None else key
        now = int(time.time())
        body = {"iss": self.issuer, "aud": audience, "iat": now, "exp": now + 300, "sub": "u1"} | self.claims | claims
        algorithm = algorithm or ("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
        given = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(given, key, algorithm, {"kid": kid})

    def jwks(self) -> dict[str, Any]:
        """Return the public keys."""
        shown = []
        for kid, key in self.keys.items():
            kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            shown.append(kind.to_jwk(key.public_key(), as_dict=True) | {"kid": kid, "use": "sig"})
        return {"keys": shown}

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address of the console with a code, as after the user's password."""
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    def exchange(self, form: dict[str, str], login: str) -> tuple[int, dict[str, Any]]:
        """Return status and answer for a code, which counts once."""
        expected = base64.b64encode(b"console:the%20secret%3A%20a%2Fb").decode()
        if login != f"Basic {expected}":
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or (asked["code_challenge"], asked["redirect_uri"]) != (challenge, form["redirect_uri"]):
            return 400, {"error": "invalid_grant"}
        given = self.token(CLIENT, **{"nonce": asked["nonce"]} | self.claims)
        return 200, {"access_token": "x", "token_type": "Bearer", "id_token": self.id_token or given}


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """Run a provider on a free port."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            provider.seen.append(parts.path)
            if provider.is_down:
                self._answer(503, {})
            elif parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(dict(parse_qsl(parts.query))))
                self.end_headers()
            elif parts.path == "/keys":
                self._answer(200, provider.jwks())
            else:
                names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
                found = {name: f"{provider.issuer}/{path}" for name, path in names.items()}
                self._answer(200, {"issuer": provider.issuer} | found | provider.discovery)

        def do_POST(self) -> None:
            provider.seen.append(self.path)
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            status, answer = provider.exchange(form, self.headers.get("Authorization", ""))
            self._answer(*((503, {}) if provider.is_down else (status, answer)))

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield provider
        server.shutdown()
