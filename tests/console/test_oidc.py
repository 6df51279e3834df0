"""Log-in at an identity provider, and attacks on it. The provider is real and small, and lies where a test says so."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ringlog.console import logging_in, oidc
from ringlog.console.oidc import OidcConfig, Provider, read_oidc
from ringlog.kernel.values import replace
from ringlog.runtime.trust import BadTrustConfig
from ringlog.testing import FakeCluster
from tests.console.console_world import ORIGIN, World, console_of, read_page, three_nodes
from tests.console.identity_provider import (
    AUDIENCE,
    CLIENT,
    EC,
    OTHER_RSA,
    RSA,
    SECRET,
    IdentityProvider,
    identity_provider,
)

PAGE = {"accept": "text/html", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
Attack = Callable[[IdentityProvider], Any]


@pytest.fixture
def idp() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@cache
def cluster() -> FakeCluster:
    """Return a cluster that no test changes."""
    return three_nodes()


def config_of(idp: IdentityProvider) -> OidcConfig:
    return OidcConfig(idp.issuer, CLIENT, (("groups", frozenset({"operators"})),), SECRET, AUDIENCE)


async def begin(world: World) -> str:
    """Begin a log-in, and return the address that the provider sends the browser back to."""
    start = await world.http.get("/login/oidc")
    assert start.status_code == 303, start.text
    assert {"HttpOnly", "SameSite=lax", "Path=/login/oidc"} <= set(start.headers["set-cookie"].split("; "))
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(start.headers["location"])
    back: str = answer.headers["location"]
    assert back.startswith(f"{ORIGIN}/login/oidc/callback?")
    return back


def in_console(idp: IdentityProvider, test: Callable[[World], Any], **changes: Any) -> None:
    """Run a test in a console that admits the group ``operators``."""

    async def run() -> None:
        provider = Provider(replace(config_of(idp), **changes))
        with console_of(cluster(), {}, provider=provider) as world:
            await test(world)

    asyncio.run(run())


def refused(answer: httpx.Response, code: str, status: int = 403) -> None:
    """Check that an answer is a page with this code, sets no session, and opens no other page."""
    assert (answer.status_code, f"<code>{code}</code>" in answer.text) == (status, True), answer.text
    assert not any(one.startswith("ringlog_login") for one in answer.headers.get_list("set-cookie"))
    assert "location" not in answer.headers
    assert "http-equiv" not in answer.text
    read_page(answer.text)


# --------------------------------------------------------------------------------------------------- browser


def test_a_browser_logs_in_and_out(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        form = (await world.http.get("/login")).text
        read_page(form)
        assert ('href="/login/oidc"' in form, 'name="token"' in form) == (True, False)
        answer = await world.http.get(await begin(world), headers=PAGE)
        read_page(answer.text)
        cookies = {one.partition("=")[0]: set(one.split("; ")) for one in answer.headers.get_list("set-cookie")}
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= cookies["ringlog_login"]
        assert "Max-Age=0" in cookies["ringlog_attempt"]
        # A redirect from another site would not bring the strict cookie.
        assert '<meta http-equiv="refresh" content="0;url=/health">' in answer.text
        page = await world.http.get("/health")
        assert (page.status_code, "Log out ann" in page.text) == (200, True)
        issued, mac, shown = world.http.cookies["ringlog_login"].split(".")
        other = base64.urlsafe_b64encode(b"bob").decode()
        for forgery in (
            f"{issued}.{mac}.{other}",
            f"{int(issued) - 1}.{mac}.{shown}",
            f"{issued}.{mac}",
            f"{issued}..x",
        ):
            answer = await world.http.get("/v1/health", headers={"cookie": f"ringlog_login={forgery}"})
            assert answer.status_code == 401, forgery
        await world.http.post("/logout", headers={"origin": ORIGIN})
        assert (await world.http.get("/v1/health")).status_code == 401

    in_console(idp, test)


def test_the_secret_and_the_verifier_stay_between_console_and_provider(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        start = await world.http.get("/login/oidc")
        query = parse_qs(urlsplit(start.headers["location"]).query)
        assert query["code_challenge_method"] == ["S256"]
        assert not {"code_verifier", "client_secret"} & query.keys()
        assert SECRET not in repr(config_of(idp))
        shown = query["state"] + query["nonce"] + query["code_challenge"]
        assert not [one for one in shown if one in start.headers["set-cookie"]]

    in_console(idp, test)


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def forged(header: dict[str, Any], claims: dict[str, Any], key: bytes | None = None) -> str:
    """Return a token that a library would refuse to make. Without a key, it has no signature."""
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, claims)]
    signature = b""
    if key is not None:
        made = jwt.get_algorithm_by_name("HS256")
        made.prepare_key = lambda given: given  # type: ignore[method-assign, assignment]
        signature = base64.urlsafe_b64encode(made.sign(b".".join(parts), key)).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


def claims(idp: IdentityProvider, audience: str) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(idp.token(audience), options={"verify_signature": False})
    return found


LIES: dict[str, dict[str, Any]] = {
    "wrong issuer": {"iss": "https://evil.example"},
    "wrong audience": {"aud": "other"},
    "no audience": {"aud": None},
    "audience of access tokens": {"aud": AUDIENCE},
    "expired": {"exp": int(time.time()) - 120},
    "no expiry": {"exp": None},
    "issued tomorrow": {"iat": int(time.time()) + 86_400},
    "not yet valid": {"nbf": int(time.time()) + 3_600},
    "no subject": {"sub": None},
    "nonce missing": {"nonce": None},
    "nonce of another log-in": {"nonce": "x"},
    "nonce is a list": {"nonce": ["x"]},
    "another client": {"aud": [CLIENT, "other"], "azp": "other"},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_id_token_that_fails_a_check_is_refused(idp: IdentityProvider, lie: dict[str, Any]) -> None:
    async def test(world: World) -> None:
        back = await begin(world)
        idp.claims |= lie
        refused(await world.http.get(back, headers=PAGE), "bad_id_token")
        assert (await world.http.get("/v1/health")).status_code == 401

    in_console(idp, test)


FORGERIES: dict[str, Attack] = {
    "no signature": lambda idp: forged({"alg": "none", "kid": "k1"}, claims(idp, AUDIENCE)),
    "HS256 with the public key": lambda idp: forged(
        {"alg": "HS256", "kid": "k1"}, claims(idp, AUDIENCE), public_pem(RSA)
    ),
    "another key": lambda idp: idp.token(AUDIENCE, OTHER_RSA),
    "a key of another type": lambda idp: idp.token(AUDIENCE, EC),
    "wrong issuer": lambda idp: idp.token(AUDIENCE, iss="https://evil.example"),
    "an ID token": lambda idp: idp.token(CLIENT),
    "expired": lambda idp: idp.token(AUDIENCE, exp=int(time.time()) - 120),
    "no expiry": lambda idp: idp.token(AUDIENCE, exp=None),
    "no token": lambda _: "a.b.c",
    "deep JSON": lambda _: base64.urlsafe_b64encode(b"[" * 9_000).decode().rstrip("=") + ".e30.x",
    "key id is a list": lambda idp: forged({"alg": "RS256", "kid": ["k1"]}, claims(idp, AUDIENCE)),
}


@pytest.mark.parametrize("attack", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_token_is_refused(idp: IdentityProvider, attack: Attack) -> None:
    async def test(world: World) -> None:
        token = attack(idp)
        answer = await world.http.get("/v1/health", headers={"authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")
        assert token not in answer.text
        back = await begin(world)
        idp.id_token = token
        refused(await world.http.get(back, headers=PAGE), "bad_id_token")

    in_console(idp, test)


def test_a_log_in_counts_once_and_in_its_browser(idp: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        back = await begin(world)
        attempt = world.http.cookies["ringlog_attempt"]
        world.http.cookies.clear()
        refused(await world.http.get(back, headers=PAGE), "login_expired")
        for wrong in ("", "1.x", "x", attempt[:-1]):
            refused(await world.http.get(back, headers=PAGE | {"cookie": f"ringlog_attempt={wrong}"}), "login_expired")
        kept = PAGE | {"cookie": f"ringlog_attempt={attempt}"}
        other = back.replace("state=", "state=0")
        refused(await world.http.get(other, headers=kept), "login_expired")
        assert (await world.http.get(back, headers=kept)).status_code == 200
        world.http.cookies.clear()
        calls = len(idp.seen)
        refused(await world.http.get(back, headers=kept), "login_expired")
        assert len(idp.seen) == calls, "a repeated answer reaches the provider"
        late = await begin(world)
        later = time.time() + logging_in.ATTEMPT_S + 1
        monkeypatch.setattr(logging_in.time, "time", lambda: later)
        refused(await world.http.get(late, headers=PAGE), "login_expired")

    in_console(idp, test)


def test_every_log_in_ends_at_the_first_page(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        evil = "next=//evil.example&redirect_uri=https://evil.example&return_to=https://evil.example"
        start = await world.http.get(f"/login/oidc?{evil}", headers={"x-forwarded-host": "evil.example"})
        assert "evil" not in start.headers["location"]
        back = await begin(world)
        answer = await world.http.get(f"{back}&{evil}", headers=PAGE)
        assert (answer.status_code, "evil" in answer.text) == (200, False)
        stranger = await world.http.get("/login/oidc", headers={"host": "evil.example"})
        assert stranger.json()["code"] == "wrong_host"

    in_console(idp, test)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda back: back.replace("iss=", "iss=https://evil.example"), "login_refused"),
        (lambda back: back.replace("code=", "error=access_denied&no="), "login_refused"),
        (lambda back: back.replace("code=", "error=%3Cscript%3E&no="), "login_refused"),
        (lambda back: back.replace("code=", "code=x&code="), "login_refused"),
        (lambda back: back.replace("code=", "code=x"), "login_refused"),
        (lambda back: back + "&state=x", "login_expired"),
    ],
)
def test_an_answer_of_the_provider_that_is_not_whole_is_refused(
    idp: IdentityProvider, change: Callable[[str], str], code: str
) -> None:
    async def test(world: World) -> None:
        answer = await world.http.get(change(await begin(world)), headers=PAGE)
        refused(answer, code)
        assert "<script" not in answer.text

    in_console(idp, test)


# ----------------------------------------------------------------------------------------------------- users


STRANGERS: tuple[dict[str, Any], ...] = (
    {"groups": ["staff"]},
    {"groups": None},
    {"groups": "operators-of-another-team"},
    {"groups": {"operators": True}},
    {"preferred_username": None},
    {"preferred_username": "ann ann"},
    {"preferred_username": "\u202eann"},
    {"preferred_username": "a" * 201},
    {"preferred_username": ["ann", "bob"]},
)


@pytest.mark.parametrize("lie", STRANGERS)
def test_a_user_whom_the_console_does_not_admit_stays_out(idp: IdentityProvider, lie: dict[str, Any]) -> None:
    async def test(world: World) -> None:
        idp.claims |= lie
        refused(await world.http.get(await begin(world), headers=PAGE), "user_not_allowed")
        answer = await world.http.get("/v1/health", headers={"authorization": f"Bearer {idp.token(AUDIENCE)}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "user_not_allowed")

    in_console(idp, test)


@pytest.mark.parametrize("verified", [True, False, "true", None])
def test_an_address_counts_after_the_provider_verified_it(idp: IdentityProvider, verified: object) -> None:
    async def test(world: World) -> None:
        idp.claims |= {"email": "ann@shop.example", "email_verified": verified}
        answer = await world.http.get("/health", headers={"authorization": f"Bearer {idp.token(AUDIENCE)}"})
        assert (answer.status_code == 200) is (verified is True)
        assert ("Log out ann@shop.example" in answer.text) is (verified is True)

    in_console(idp, test, allow=(("email", frozenset({"ann@shop.example"})),), user_claim="email")


def test_a_program_reads_with_an_access_token(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        for token in (idp.token(AUDIENCE), idp.token(["x", AUDIENCE]), idp.token(AUDIENCE, algorithm="PS512")):
            answer = await world.http.get("/v1/health", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == 200, answer.text
        assert idp.seen.count("/keys") == 1, "keys are kept"

    in_console(idp, test)


def test_without_an_audience_no_access_token_is_accepted(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        for audience in (CLIENT, AUDIENCE, ""):
            answer = await world.http.get("/v1/health", headers={"authorization": f"Bearer {idp.token(audience)}"})
            assert (answer.status_code, answer.json()["code"]) == (401, "not_authenticated")

    in_console(idp, test, audience="")


def test_clocks_may_differ_by_a_minute(idp: IdentityProvider) -> None:
    async def test(world: World) -> None:
        now = int(time.time())
        for times, status in (
            ({"exp": now - 30}, 200),
            ({"iat": now + 30, "nbf": now + 30}, 200),
            ({"exp": now - 90}, 401),
            ({"iat": now + 120}, 401),
        ):
            token = idp.token(AUDIENCE, **times)
            answer = await world.http.get("/v1/health", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == status, times

    in_console(idp, test)


# -------------------------------------------------------------------------------------------------- provider


def test_a_new_key_is_found_and_strangers_cause_no_more_requests(
    idp: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    steady = time.monotonic
    monkeypatch.setattr(oidc.time, "monotonic", lambda: steady() + passed[0])

    async def test(world: World) -> None:
        async def status(token: str) -> int:
            return (await world.http.get("/v1/health", headers={"authorization": f"Bearer {token}"})).status_code

        old = idp.token(AUDIENCE)
        assert await status(old) == 200
        idp.keys = {"k1": RSA, "k2": EC}
        new = idp.token(AUDIENCE)
        assert await status(new) == 401, "the keys were read a moment ago"
        passed[0] += oidc.RETRY_S
        assert await asyncio.gather(*[status(new) for _ in range(5)]) == [200] * 5
        unknown = forged({"alg": "RS256", "kid": "k9"}, claims(idp, AUDIENCE))
        before = idp.seen.count("/keys")
        passed[0] += oidc.RETRY_S
        assert set(await asyncio.gather(*[status(unknown) for _ in range(50)])) == {401}
        assert idp.seen.count("/keys") == before + 1
        idp.keys = {"k2": EC}
        passed[0] += oidc.FRESH_S
        await status(new)
        assert world.provider is not None
        assert world.provider.reading is not None
        await world.provider.reading
        assert await status(old) == 401, "the key was withdrawn"

    in_console(idp, test)


def test_sessions_continue_while_the_provider_is_down(idp: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    steady = time.monotonic
    monkeypatch.setattr(oidc.time, "monotonic", lambda: steady() + passed[0])

    async def test(world: World) -> None:
        bearer = {"authorization": f"Bearer {idp.token(AUDIENCE)}"}
        idp.is_down = True
        refused(await world.http.get("/login/oidc", headers=PAGE), "provider_unreachable", 503)
        answer = await world.http.get("/v1/health", headers=bearer)
        assert (answer.status_code, answer.json()["code"]) == (503, "provider_unreachable")
        idp.is_down = False
        passed[0] += oidc.RETRY_S
        assert (await world.http.get(await begin(world), headers=PAGE)).status_code == 200
        back = await begin(world)
        idp.is_down = True
        refused(await world.http.get(back, headers=PAGE), "provider_unreachable", 503)
        passed[0] += oidc.FRESH_S
        assert (await world.http.get("/health")).status_code == 200
        assert (await world.http.get("/v1/health", headers=bearer)).status_code == 200, "its key is known"
        passed[0] += oidc.STALE_S
        assert (await world.http.get("/v1/health", headers=bearer)).status_code == 503
        assert (await world.http.get("/health")).status_code == 200

    in_console(idp, test)


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://192.0.2.1/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"padding": "x" * oidc.ANSWER_BYTES_MAX},
    ],
)
def test_a_provider_that_describes_itself_wrongly_is_not_used(idp: IdentityProvider, discovery: dict[str, Any]) -> None:
    async def test(world: World) -> None:
        idp.discovery = discovery
        refused(await world.http.get("/login/oidc", headers=PAGE), "provider_unreachable", 503)

    in_console(idp, test)


def test_keys_that_do_not_sign_are_skipped() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    shown = IdentityProvider(keys={"good": RSA, "weak": weak}).jwks()["keys"]
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "oct"}
    encrypting = shown[0] | {"use": "enc", "kid": "enc"}
    found = oidc.keys_in({"keys": [*shown, secret, encrypting, {}, 7, {"kty": "RSA", "n": "!"}]})
    assert [key.id for key in found] == ["good"]
    assert oidc.keys_in({"keys": 7}) == ()


# ------------------------------------------------------------------------------------------------------ file


GOOD = "issuer=https://id.example/realms/ops\nclient.id=console\nallow.groups=operators, readers\n"


def test_a_file_names_the_provider_and_who_may_enter(tmp_path: Path) -> None:
    file = tmp_path / "oidc.properties"
    file.touch(0o600)
    file.write_text(GOOD + "client.secret=s\naudience=ringlog\nuser.claim=email\nca.file=ca.pem\n")
    found = read_oidc(file)
    assert (found.issuer, found.client_secret, found.user_claim) == ("https://id.example/realms/ops", "s", "email")
    assert found.allow == (("groups", frozenset({"operators", "readers"})),)
    assert found.ca == tmp_path / "ca.pem"
    with pytest.raises(BadTrustConfig, match="no certificates"):
        Provider(found)
    for text, rule in (
        (GOOD.replace("https", "http"), "https URL"),
        (GOOD.replace("client.id=console\n", ""), "client.id is missing"),
        (GOOD.partition("allow")[0], "each user of the provider"),
        (GOOD + "allow.email=,\n", "must have a value"),
        (GOOD + "audience=console\n", "must differ"),
        (GOOD + "scope=email\n", "must contain openid"),
        (GOOD + "clientid=x\n", "not an option"),
        (GOOD + "client.secret=\xe9\n", "ASCII"),
        (GOOD + "line\n", "not a name=value line"),
    ):
        file.write_text(text)
        with pytest.raises(BadTrustConfig, match=rule):
            read_oidc(file)
    file.write_text(GOOD)
    file.chmod(0o644)
    with pytest.raises(BadTrustConfig):
        read_oidc(file)
