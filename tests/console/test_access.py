"""Access to the console: tokens, cookies, other web pages, addresses."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from ringlog.console import access
from ringlog.console.access import users_of
from ringlog.console.server import check_safe
from ringlog.console.table import VIEWS
from ringlog.operator.errors import Refused
from ringlog.runtime.trust import BadTrustConfig
from tests.console.console_world import ORIGIN, World, console_of, read_page, three_nodes

TOKEN = "token-of-ann-0123456789"
USERS = {TOKEN: "ann", "token-of-bob-0123456789": "bob"}
BEARER = {"authorization": f"Bearer {TOKEN}"}
PATHS = (
    [f"/{name}" for name in VIEWS]
    + [f"/v1/{name}" for name in VIEWS]
    + ["/", "/change", "/v1/events", "/v1/openapi.json"]
)


WRONG = (
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {TOKEN}"},
    {"cookie": "ringlog_login=1.2"},
    {"cookie": f"ringlog_login={TOKEN}"},
)


@pytest.mark.parametrize("given", WRONG)
def test_without_a_valid_token_nothing_is_shown(given: dict[str, str]) -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS) as world:
            for path in PATHS:
                answer = await world.http.get(path, headers=given)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                assert answer.json()["code"] == "not_authenticated"
                assert "app" not in answer.text
            page = await world.http.get("/health", headers=given | {"accept": "text/html"})
            assert (page.status_code, page.headers["location"]) == (303, "/login")

    asyncio.run(ask())


def test_a_probe_needs_no_token_and_learns_nothing() -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS) as world:
            answer = await world.http.get("/ready")
            assert (answer.status_code, answer.text) == (200, "ready\n")
            assert (await world.http.get("/ready/health")).status_code == 404

    asyncio.run(ask())


async def log_in(world: World, token: str = TOKEN) -> str:
    answer = await world.http.post("/login", data={"token": token}, headers={"origin": ORIGIN})
    assert answer.status_code == 303, answer.text
    return answer.headers["set-cookie"]


def test_a_browser_logs_in_and_out() -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS) as world:
            read_page((await world.http.get("/login")).text)
            wrong = await world.http.post("/login", data={"token": "x"}, headers={"origin": ORIGIN})
            assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
            cookie = await log_in(world)
            assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
            assert TOKEN not in cookie
            page = await world.http.get("/health")
            assert (page.status_code, "Log out ann" in page.text) == (200, True)
            out = await world.http.post("/logout", headers={"origin": ORIGIN})
            assert (out.status_code, 'ringlog_login=""' in out.headers["set-cookie"]) == (303, True)

    asyncio.run(ask())


def test_a_cookie_ends_with_its_token_and_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        users = dict(USERS)
        with console_of(three_nodes(), users) as world:
            await log_in(world)
            await log_in(world, "token-of-bob-0123456789")
            assert "Log out bob" in (await world.http.get("/health")).text
            del users["token-of-bob-0123456789"]
            assert (await world.http.get("/health")).status_code == 401
            await log_in(world)
            later = time.time() + access.LOGIN_S + 1
            monkeypatch.setattr(access.time, "time", lambda: later)
            assert (await world.http.get("/health")).status_code == 401

    asyncio.run(ask())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "127.0.0.1, evil"])
def test_another_host_name_is_refused(host: str) -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            for path in PATHS:
                answer = await world.http.get(path, headers={"host": host})
                assert (answer.status_code, answer.json()["code"]) == (403, "wrong_host")

    asyncio.run(ask())


def test_another_site_can_only_link_to_a_page() -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS, allows_changes=True) as world:
            await log_in(world)
            site = {"sec-fetch-site": "cross-site"}
            assert (await world.http.get("/health", headers=site | {"sec-fetch-mode": "navigate"})).status_code == 200
            for path in PATHS:
                answer = await world.http.get(path, headers=site | {"sec-fetch-mode": "no-cors"})
                assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")
            for path in ("/change", "/login", "/logout", "/v1/commands", "/v1/rehearsals"):
                for origin in (
                    {},
                    {"origin": "https://evil.example"},
                    {"origin": "null"},
                    {"origin": "http://127.0.0.1:9999"},
                ):
                    answer = await world.http.post(path, headers=origin, content=b"{}")
                    assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), (path, origin)

    asyncio.run(ask())


def test_every_answer_has_the_security_headers() -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            for path in [one for one in PATHS if one != "/v1/events"] + [
                "/unknown",
                "/static/console.js",
                "/v1/nodes?wrong=1",
            ]:
                headers = (await world.http.get(path)).headers
                policy = headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert headers["x-content-type-options"] == "nosniff"
                assert "access-control-allow-origin" not in headers
                assert headers["cache-control"] in ("private, no-cache", "no-cache"), path

    asyncio.run(ask())


def test_a_user_confirms_what_was_rehearsed() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        with console_of(cluster, USERS, allows_changes=True) as world:
            await log_in(world)
            text = '{"command": "PauseChanges", "scopes": ["splits"], "reason": "<b>"}'
            shown = await world.http.post("/change", data={"text": text}, headers={"origin": ORIGIN})
            reader = read_page(shown.text)
            assert "Rehearsal on epoch" in "".join(reader.words)
            fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', shown.text))
            fields["text"] = fields["text"].replace("&#34;", '"').replace("&#10;", "\n").replace("&#39;", "'")
            wrong = await world.http.post("/change", data=fields | {"confirm": "x"}, headers={"origin": ORIGIN})
            assert (wrong.status_code, "not_confirmed" in wrong.text) == (400, True)
            assert not cluster.state.pauses
            for _ in range(2):  # the form may be sent twice
                done = await world.http.post("/change", data=fields | {"confirm": "tests"}, headers={"origin": ORIGIN})
                assert done.status_code == 303, done.text
            assert [one.reason for one in cluster.state.pauses.values()] == ["<b>"]
            lines = (await world.http.get("/v1/log?by=ann&all=1")).json()["lines"]
            assert [line["entry"]["command"] for line in lines] == ["PauseChanges"]

    asyncio.run(ask())


# ------------------------------------------------------------------------------------------------------- start


def test_another_address_needs_a_log_in_and_certificates() -> None:
    check_safe("127.0.0.1", has_login=False, allows_changes=False)
    check_safe("localhost", has_login=True, allows_changes=True)
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        for has_login in (False, True):
            with pytest.raises(Refused, match="other machines") as refused:
                check_safe(host, has_login=has_login, allows_changes=False)
            assert refused.value.code == "unguarded_address"
    with pytest.raises(Refused, match="needs --tokens"):
        check_safe("127.0.0.1", has_login=False, allows_changes=True)


def test_a_file_of_users_is_private_and_has_a_name_and_a_token_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    for text in ("", "ann\n", f"{TOKEN}\n", "ann short\n", f"a b {TOKEN}\n"):
        file.write_text(text)
        with pytest.raises(BadTrustConfig, match="NAME TOKEN"):
            users_of(file)
    file.write_text(f"ann {TOKEN}\n\nbob {TOKEN}2\n")
    assert users_of(file)() == {TOKEN: "ann", f"{TOKEN}2": "bob"}
    file.chmod(0o644)
    with pytest.raises(BadTrustConfig):
        users_of(file)
