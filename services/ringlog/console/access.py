"""Access to the console: users with tokens, and the checks that keep other web pages out.

A program sends ``Authorization: Bearer TOKEN``. A browser logs in with a token or at an identity provider
(``console.oidc``) and gets a cookie that no script can read and that other sites do not send. The cookie has an HMAC by
a key of this process, so it does not contain the token. It ends with the token, after ``LOGIN_S``, or when the console
restarts.

Invariants: a request under another host name is refused (DNS rebinding), and so is one that another site caused, except
a link to a page. A request that changes something needs the origin of the console, unless it has a bearer token. Tokens
are compared in constant time. Each response has a content security policy without inline scripts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, Final

from ringlog.kernel.values import Value
from ringlog.runtime.monitoring.scrape import is_own
from ringlog.runtime.trust import BadTrustConfig, Trust, TrustFile, secret_lines

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

USER: Final = "ringlog.user"
"""The key of a request's user in its scope."""
GUARD: Final = "ringlog.guard"
"""The key of the ``AccessMiddleware`` in the scope of a request."""
COOKIE: Final = "ringlog_login"
LOGIN_S: Final = 12 * 3_600
READY: Final = "/ready"
OPEN_PATHS: Final = ("/login", "/static/", READY)
_LINE: Final = re.compile(r"(\S{1,200}) ([A-Za-z0-9._~+/-]{16,512}=*)")
HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # no-referrer would make the origin of a form "null"
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class NotLoggedIn(Exception):
    """A log-in or a token that is refused. ``code``: one of ``CODES``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class User(Value):
    """The sender of a request. ``name``: empty if the console has no tokens."""

    name: str = ""


def users_of(path: Path) -> Callable[[], Mapping[str, str]]:
    """Return a function that returns the present users of a file, as token to name.

    Each line has a name, a blank and a token. A changed file applies within a second; an invalid one is ignored. Raises
    BadTrustConfig if the file is invalid now.
    """

    def read(file: Path) -> tuple[tuple[Path, ...], Trust]:
        lines = secret_lines(file)
        if not lines or not all(map(_LINE.fullmatch, lines)):
            raise BadTrustConfig(
                f"{file}: each line must be NAME TOKEN, with 16 to 512 letters, digits, or - . _ ~ + /"
            )
        return (file,), Trust(tokens=lines)

    found = TrustFile(path.absolute(), read=read)
    found.now()

    def users() -> Mapping[str, str]:
        pairs = (line.partition(" ") for line in found.now().tokens)
        return {token: name for name, _, token in pairs}

    return users


class AccessMiddleware:
    """ASGI middleware with the checks of this module.

    Args:
        hosts: Names that the console answers to, besides those of the loopback interface.
        users: Returns the users, as token to name; None: any client that reaches the address may read.
        user_of_bearer: Returns the user of an access token of an identity provider. Raises NotLoggedIn.
    """

    def __init__(
        self,
        app: Asgi,
        hosts: tuple[str, ...] = (),
        users: Callable[[], Mapping[str, str]] | None = None,
        user_of_bearer: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._users = users
        self._user_of_bearer = user_of_bearer
        self._key = secrets.token_bytes(32)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse or forward a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                defaults = [*HEADERS, (b"cache-control", b"private, no-cache")]
                message["headers"] = [*message["headers"], *(one for one in defaults if one[0] not in given)]
            await send(message)

        user, refused = None, self._refusal(scope, headers)
        if refused is None:
            user, refused = await self._admitted(scope, headers)
        scope[USER], scope[GUARD] = user, self
        if refused:
            await _respond(guarded, *refused, wants_page=_wants_page(scope, headers))
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Message, headers: Mapping[str, list[str]]) -> tuple[str, str] | None:
        """Return code and detail if another site caused the request; otherwise None."""
        if not is_own(headers.get("host", []), *self._hosts):
            return "wrong_host", "this server has another name"
        site = headers.get("sec-fetch-site", ["none"])[0]
        is_link = scope["method"] == "GET" and headers.get("sec-fetch-mode", [""])[0] == "navigate"
        if site not in ("none", "same-origin") and not is_link:
            return "cross_origin", "another site sent this request"
        if scope["method"] not in ("GET", "HEAD"):
            own = f"{scope['scheme']}://{headers['host'][0].lower()}"
            origins = [origin.lower() for origin in headers.get("origin", [])]
            if origins not in ([own], []) or (not origins and "authorization" not in headers):
                return "cross_origin", "a change needs the origin of the console, or a bearer token"
        return None

    async def _admitted(
        self, scope: Message, headers: Mapping[str, list[str]]
    ) -> tuple[User | None, tuple[str, str] | None]:
        """Return the user, or code and detail of a refusal. Pages of the log-in admit all."""
        is_open = scope["path"].startswith(OPEN_PATHS)
        try:
            user = await self._user_of(headers, asks=not is_open)
        except NotLoggedIn as error:
            return None, (error.code, error.detail)
        if user is None and not is_open:
            return None, ("not_authenticated", "send a token of this console: Authorization: Bearer …")
        return user, None

    async def _user_of(self, headers: Mapping[str, list[str]], *, asks: bool) -> User | None:
        if self._users is None:
            return User()
        if "authorization" in headers:
            scheme, _, token = headers["authorization"][0].partition(" ")
            if len(headers["authorization"]) != 1 or scheme.lower() != "bearer":
                return None
            user = self.user_of_token(token.strip())
            if user is None and asks and self._user_of_bearer and token.count(".") == 2:
                return User(await self._user_of_bearer(token.strip()))
            return user
        return self._user_of_cookie("; ".join(headers.get("cookie", [])))

    def user_of_token(self, token: str) -> User | None:
        """Return the user of a token, or None. Compares with every token."""
        shown, found = token.encode("utf-8", "surrogateescape"), None
        for known, name in (self._users or dict)().items():
            if hmac.compare_digest(shown, known.encode()):
                found = User(name)
        return found

    def login(self, token: str) -> str | None:
        """Return the value of the cookie for a token, or None if no user has it."""
        if self.user_of_token(token) is None:
            return None
        issued = str(int(time.time()))
        return f"{issued}.{self.mac(issued, token)}"

    def login_as(self, name: str) -> str:
        """Return the value of the cookie for a user of the identity provider."""
        issued, shown = str(int(time.time())), base64.urlsafe_b64encode(name.encode()).decode()
        return f"{issued}.{self.mac('name', issued, shown)}.{shown}"

    def mac(self, *parts: str) -> str:
        """Return a MAC, in hex digits, by the key of this process.

        The first part is the purpose: a word, or for tokens the time of the log-in, which is a number.
        """
        return hmac.new(self._key, " ".join(parts).encode(), hashlib.sha256).hexdigest()

    def _user_of_cookie(self, text: str) -> User | None:
        try:
            morsel = SimpleCookie(text).get(COOKIE)
        except CookieError:
            return None
        issued, mac, shown = (("" if morsel is None else morsel.value).split(".") + [""] * 3)[:3]
        if not issued.isascii() or not issued.isdecimal() or not 0 <= time.time() - int(issued) <= LOGIN_S:
            return None
        found, given = None, mac.encode("utf-8", "surrogateescape")
        if shown:
            is_ours = hmac.compare_digest(self.mac("name", issued, shown).encode(), given)
            return User(base64.urlsafe_b64decode(shown).decode()) if is_ours else None
        for token, name in (self._users or dict)().items():
            if hmac.compare_digest(self.mac(issued, token).encode(), given):
                found = User(name)
        return found


def _wants_page(scope: Message, headers: Mapping[str, list[str]]) -> bool:
    return scope["method"] == "GET" and "text/html" in headers.get("accept", [""])[0]


async def _respond(send: Send, code: str, detail: str, *, wants_page: bool) -> None:
    status = CODES[code][0]
    if status == 401 and wants_page:
        head, body, status = [(b"location", b"/login")], b"", 303
    else:
        body = json.dumps(problem(code, detail)).encode()
        head = [(b"content-type", b"application/problem+json")]
        head += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    head.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


CODES: Final = {
    "bad_json": (400, "The body is not JSON."),
    "bad_field": (400, "A parameter, a header or the body breaks the rule in the detail."),
    "unknown_field": (400, "The view does not have the parameter."),
    "not_confirmed": (400, "The confirmation is not the name of the cluster."),
    "not_authenticated": (401, "The request has no valid token."),
    "login_expired": (403, "The log-in took too long, was used before, or began in another browser."),
    "login_refused": (403, "The identity provider did not log the user in."),
    "bad_id_token": (403, "The identity provider sent an ID token that does not pass the checks."),
    "user_not_allowed": (403, "The user has no claim that the console admits."),
    "wrong_host": (403, "The request names another host."),
    "cross_origin": (403, "Another web page sent the request, or the request has no origin."),
    "not_authorized": (403, "The console is read-only, or the user does not have the right."),
    "approval_needed": (403, "A second principal must approve the command. Use the command line."),
    "epoch_unknown": (404, "The log ends before the epoch, or begins after it."),
    "not_found": (404, "The path does not exist."),
    "request_expired": (410, "The outcome of the request is unknown, and final."),
    "body_too_large": (413, "The body is too large."),
    "wrong_media_type": (415, "The body is not `application/json`."),
    "provider_unreachable": (503, "The identity provider does not answer. Sessions continue."),
    "login_busy": (503, "Too many log-ins at the same time. Try again in a moment."),
    "replay_busy": (503, "Another request reads the past. Try again in a moment."),
    "internal_error": (500, "A defect of the console."),
    "too_many_streams": (503, "No further event stream can be opened now."),
    "wait_timed_out": (504, "The epoch of `wait` did not arrive in time."),
    "submission_timed_out": (504, "The outcome of the command is unknown. Send it again with the same key."),
}
"""HTTP status and meaning of the codes of the console. Other codes: rejections (409) and errors of the log (503)."""


def problem(code: str, detail: str, ways_out: Sequence[str] = (), status: int = 503, **more: Any) -> dict[str, Any]:
    """Return a problem of RFC 9457. ``code``: a stable code. ``status``: for codes that are not in ``CODES``."""
    status, title = CODES.get(code, (status, ""))[0], code.replace("_", " ").capitalize()
    found = {"type": f"urn:ringlog:code:{code}", "title": title, "status": status, "code": code, "detail": detail}
    return found | {"ways_out": list(ways_out), **more}
