"""How a browser logs in to the console: with a token, or at an identity provider.

The provider sends the browser back with a code (authorization code flow with PKCE). ``state``, ``nonce`` and the
verifier are MACs of a random cookie by the key of this process. So only the browser that began a log-in can end it, and
the console stores nothing about strangers.

Invariants: a failure is a page with a code. Only the page after a log-in opens another page automatically. That is
always the first page; no parameter selects another. The session cookie is ``SameSite=Strict``: a browser does not
send it after a redirect from another site, so the last step is a page of the console.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ringlog.console import pages
from ringlog.console.access import CODES, COOKIE, GUARD, LOGIN_S, AccessMiddleware, NotLoggedIn

if TYPE_CHECKING:  # needs the extra oidc
    from ringlog.console.oidc import Provider

START: Final = "/login/oidc"
CALLBACK: Final = "/login/oidc/callback"
ATTEMPT: Final = "ringlog_attempt"
ATTEMPT_S: Final = 600
"""Seconds that a user has at the provider."""
EXCHANGES_MAX: Final = 4
USED_MAX: Final = 10_000
PARAMETER_MAX: Final = 4_096


class LoginPages:
    """The pages of the log-in. For one event loop.

    Args:
        provider: The identity provider, if there is one.
        has_tokens: True if users may log in with a token.
        head: Returns the head of a page.
        form: Returns the fields of a form.
    """

    def __init__(
        self,
        provider: Provider | None,
        head: Callable[[], pages.Head],
        form: Callable[[Request], Awaitable[dict[str, str]]],
        *,
        has_tokens: bool,
    ) -> None:
        self._provider = provider
        self._form = form
        self._has_tokens = has_tokens
        self._head = head
        self._exchanges = 0
        self._used: OrderedDict[str, None] = OrderedDict()

    def routes(self) -> tuple[tuple[str, str, Callable[..., Awaitable[Response]]], ...]:
        """Return method, path and handler of each page."""
        return (
            ("GET", "/login", self.page),
            ("POST", "/login", self.with_token),
            ("POST", "/logout", self.logout),
            ("GET", START, self.start),
            ("GET", CALLBACK, self.callback),
        )

    async def page(self) -> Response:
        """Return the form for a token, and the link to the provider."""
        return self._page()

    def _page(self, problem: NotLoggedIn | None = None, *, is_done: bool = False) -> Response:
        issuer = self._provider.config.issuer if self._provider else ""
        body = pages.render_login(
            self._head(), problem=problem, is_done=is_done, has_tokens=self._has_tokens, issuer=issuer
        )
        status = CODES[problem.code][0] if problem else 200
        return HTMLResponse(body, status, headers={"cache-control": "no-store"})

    async def with_token(self, request: Request) -> Response:
        """Log a browser in with a token."""
        cookie = _guard(request).login((await self._form(request)).get("token", "").strip())
        if cookie is None:
            return self._page(NotLoggedIn("not_authenticated", "no user has this token"))
        return _with_cookie(RedirectResponse("/health", 303), request, COOKIE, cookie)

    async def logout(self) -> Response:
        """Log a browser out. The session at the provider continues."""
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    async def start(self, request: Request) -> Response:
        """Send a browser to the provider."""
        try:
            provider = self._required()
            attempt = f"{int(time.time())}.{secrets.token_urlsafe(24)}"
            state, nonce, verifier = _derived(_guard(request), attempt)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
            address = await provider.authorization(_redirect(request), state, nonce, challenge)
        except NotLoggedIn as error:
            return self._page(error)
        return _with_cookie(RedirectResponse(address, 303), request, ATTEMPT, attempt)

    async def callback(self, request: Request) -> Response:
        """Log a browser in that the provider sends back."""
        try:
            name = await self._user_of(request)
            answer = self._page(is_done=True)
            _with_cookie(answer, request, COOKIE, _guard(request).login_as(name))
        except NotLoggedIn as error:
            answer = self._page(error)
        answer.delete_cookie(ATTEMPT, path=START, httponly=True, samesite="lax")
        return answer

    async def _user_of(self, request: Request) -> str:
        provider, attempt = self._required(), request.cookies.get(ATTEMPT, "")
        given = {name: request.query_params.getlist(name) for name in ("state", "code", "iss", "error")}
        one = {name: values[0] for name, values in given.items() if len(values) == 1 and len(values[0]) < PARAMETER_MAX}
        state, nonce, verifier = _derived(_guard(request), attempt)
        if not hmac.compare_digest(state.encode(), one.get("state", "").encode("utf-8", "replace")):
            raise NotLoggedIn("login_expired", "the log-in began in another browser, or was completed before")
        issued = attempt.partition(".")[0]
        if not 0 <= time.time() - int(issued) <= ATTEMPT_S or state in self._used:
            raise NotLoggedIn("login_expired", f"a log-in counts once, and for {ATTEMPT_S // 60} minutes")
        if one.get("iss", provider.config.issuer) != provider.config.issuer:
            raise NotLoggedIn("login_refused", "the answer comes from another identity provider")
        if "code" not in one or given["error"]:
            said = one.get("error", "")
            is_word = said.isascii() and said.replace("_", "").isalpha() and len(said) <= 40
            raise NotLoggedIn("login_refused", f"the identity provider answers {said if is_word else 'no code'}")
        if self._exchanges >= EXCHANGES_MAX:
            raise NotLoggedIn("login_busy", "too many log-ins at the same time")
        self._used[state] = None
        while len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        self._exchanges += 1
        try:
            return await provider.user_of_code(one["code"], _redirect(request), verifier, nonce)
        finally:
            self._exchanges -= 1

    def _required(self) -> Provider:
        if self._provider is None:
            raise NotLoggedIn("login_refused", "this console has no identity provider")
        return self._provider


def _guard(request: Request) -> AccessMiddleware:
    found = request.scope[GUARD]
    assert isinstance(found, AccessMiddleware), "it forwarded the request"
    return found


def _derived(guard: AccessMiddleware, attempt: str) -> tuple[str, str, str]:
    """Return state, nonce and verifier of a log-in. Only this process can compute them."""
    state, nonce, verifier = (guard.mac(purpose, attempt) for purpose in ("state", "nonce", "verifier"))
    return state, nonce, verifier


def _redirect(request: Request) -> str:
    """Return the address that the provider sends the browser back to. The middleware has checked the host."""
    return f"{request.url.scheme}://{request.headers['host']}{CALLBACK}"


def _with_cookie(answer: Response, request: Request, name: str, value: str) -> Response:
    """Set the cookie of a session, or of a log-in, which the provider's redirect must bring back."""
    is_session = name == COOKIE
    answer.set_cookie(
        name,
        value,
        max_age=LOGIN_S if is_session else ATTEMPT_S,
        httponly=True,
        samesite="strict" if is_session else "lax",
        secure=request.url.scheme == "https",
        path="/" if is_session else START,
    )
    return answer
