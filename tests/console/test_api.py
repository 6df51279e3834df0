"""The HTTP API: entity tags, waiting, problems, events, rehearsals and commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
from immutables import Map

from ringlog import commands
from ringlog.console import app, changing, events
from ringlog.console.hub import WINDOW, EpochHub
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.testing import FakeCluster
from tests.console.console_world import ORIGIN, World, console_of, hub_of, three_nodes
from tests.kernel import entries

BEARER = {"authorization": "Bearer token-of-ann-0123456789"}
USERS = {"token-of-ann-0123456789": "ann", "token-of-bob-0123456789": "bob"}


def run(asked: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(asked, 60))


def create(cluster: FakeCluster, *names: str) -> None:
    with cluster.client("setup") as client:
        for name in names:
            client.submit(commands.create_keyspace(name, 3))


# ------------------------------------------------------------------------------------------------------- reading


def test_an_unchanged_view_is_not_sent_again() -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            first = await world.http.get("/v1/schema")
            assert first.headers["ringlog-epoch"] == str(world.hub.state.epoch)
            known = {"if-none-match": first.headers["etag"]}
            again = await world.http.get("/v1/schema", headers=known)
            assert (again.status_code, again.content) == (304, b"")
            create(world.cluster, "late")
            changed = await world.http.get("/v1/schema", headers=known)
            assert (changed.status_code, changed.headers["etag"] == first.headers["etag"]) == (200, False)

    run(ask())


def test_new_reports_at_the_same_epoch_change_the_tag_of_a_live_view() -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            tag = (await world.http.get("/v1/health")).headers["etag"]
            assert (await world.http.get("/v1/health", headers={"if-none-match": tag})).status_code == 304
            world.live.append(replace(world.live[-1], version=2, problem="log_unavailable: no answer"))
            found = await world.http.get("/v1/health", headers={"if-none-match": tag})
            assert (found.status_code, found.json()["verdict"]) == (200, "CRITICAL")
            past = await world.http.get("/v1/health?epoch=20")
            assert past.headers["etag"].startswith('"20-')

    run(ask())


def test_the_past_is_the_state_of_that_epoch() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        epoch = cluster.state.epoch
        create(cluster, "late")
        with console_of(cluster) as world:
            names = {
                given: [row["name"] for row in (await world.http.get(f"/v1/schema{given}")).json()["keyspaces"]]
                for given in ("", f"?epoch={epoch}")
            }
            assert names == {"": ["app", "late"], f"?epoch={epoch}": ["app"]}
            unknown = await world.http.get("/v1/schema?epoch=9999")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "epoch_unknown")
            assert unknown.headers["content-type"] == "application/problem+json"

    run(ask())


def test_a_wait_ends_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            wanted = world.hub.state.epoch + 1
            waiting = asyncio.create_task(world.http.get(f"/v1/schema?wait={wanted}"))
            await asyncio.to_thread(create, world.cluster, "late")
            assert (await waiting).headers["ringlog-epoch"] == str(wanted)
            monkeypatch.setattr("ringlog.console.app.WAIT_S", 0.0)
            late = await world.http.get(f"/v1/schema?wait={wanted + 1}")
            assert (late.status_code, late.json()["code"]) == (504, "wait_timed_out")

    run(ask())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/nodes?limit=0", 400, "bad_field"),
        ("/v1/nodes?limit=1001", 400, "bad_field"),
        ("/v1/nodes?page=-1", 400, "bad_field"),
        ("/v1/nodes?page=1&page=2", 400, "bad_field"),
        ("/v1/nodes?page=%D9%A1", 400, "bad_field"),
        ("/v1/nodes?wrong=1", 400, "unknown_field"),
        (f"/v1/nodes?filter={'x' * 201}", 400, "bad_field"),
        ("/v1/log?refused=yes", 400, "bad_field"),
        ("/v1/events?since=99999", 404, "epoch_unknown"),
        ("/v1/unknown", 404, "not_found"),
        ("/static/..%2Fapp.py", 404, "not_found"),
    ],
)
def test_a_wrong_request_is_a_problem(path: str, status: int, code: str) -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            answer = await world.http.get(path)
            assert (answer.status_code, answer.json()["code"], answer.json()["status"]) == (status, code, status)

    run(ask())


def test_every_other_answer_is_a_problem_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS, allows_changes=True) as world:
            wrong = await world.http.put("/v1/nodes", headers=BEARER)
            assert (wrong.status_code, wrong.json()["code"]) == (404, "not_found")
            status, found = await send(world, {"command": "\ud800"}, "/v1/rehearsals")
            assert (status, found["code"]) == (400, "unknown_command")
            status, found = await send(world, CREATE | {"name": "\ud800"})
            assert (status, found["code"]) == (400, "bad_field")
            text = json.dumps(CREATE | {"name": "\ud800"})
            page = await world.http.post("/change", data={"text": text}, headers=BEARER)
            assert (page.status_code, "bad_field" in page.text) == (400, True)
            with world.hub._replay():
                monkeypatch.setattr("ringlog.console.hub.REPLAY_WAIT_S", 0.0)
                world.hub._records.clear()
                busy = await world.http.get("/v1/schema?epoch=20", headers=BEARER)
                assert (busy.status_code, busy.json()["code"]) == (503, "replay_busy")
            transport = httpx.ASGITransport(world.http._transport.app, raise_app_exceptions=False)  # type: ignore[attr-defined]
            monkeypatch.setattr(world.hub, "wait", None)
            async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
                defect = await http.get("/v1/nodes?wait=1", headers=BEARER)
                assert (defect.status_code, defect.json()["code"]) == (500, "internal_error")

    run(ask())


def test_the_description_of_the_api_has_every_view() -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            described = (await world.http.get("/v1/openapi.json")).json()
            for path in described["paths"]:
                if path not in ("/v1/events", "/v1/rehearsals", "/v1/commands"):
                    names = [one["name"] for one in described["paths"][path]["get"]["parameters"]]
                    assert names[:2] == ["epoch", "wait"]
                    assert (await world.http.get(path)).status_code == 200
            assert len(described["paths"]) == 18

    run(ask())


# -------------------------------------------------------------------------------------------------------- events


async def epochs(hub: EpochHub, since: int, until: int) -> list[int]:
    """Return the ids of the events of a stream up to an epoch; the reader then disconnects."""
    found: list[int] = []
    done = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        for line in message.get("body", b"").decode().splitlines():
            if line.startswith("id: "):
                found.append(int(line.removeprefix("id: ")))
        if found and found[-1] >= until:
            done.set()

    streams = events.EventStreams(hub, dict)
    await streams.serve(receive, send, since)
    assert streams.open == 0
    return found


def test_a_stream_has_each_epoch_once_across_a_restart_of_the_console() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        with hub_of(cluster) as (_, hub):
            newest = hub.state.epoch
            reading = asyncio.create_task(epochs(hub, newest, newest + 2))
            await asyncio.to_thread(create, cluster, "a", "b")
            assert await reading == [newest + 1, newest + 2]
        create(cluster, "c", "d")
        with hub_of(cluster) as (_, hub):  # a new console, to which the reader returns with its last id
            assert await epochs(hub, newest + 2, newest + 4) == [newest + 3, newest + 4]

    run(ask())


def test_a_stream_reads_what_the_window_no_longer_has_from_the_log() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        with cluster.client("setup") as client:
            client.submit_many([commands.Noop()] * WINDOW)
        with hub_of(cluster) as (_, hub):
            assert hub.after(3) is None
            newest = hub.state.epoch
            assert await epochs(hub, 3, newest) == list(range(4, newest + 1))

    run(ask())


def test_a_reader_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        monkeypatch.setattr(events, "SLOW_S", 0.01)

        async def never(*_: Any) -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await never()

        with hub_of(three_nodes()) as (_, hub):
            streams = events.EventStreams(hub, dict)
            await streams.serve(never, send, hub.state.epoch)
            assert streams.open == 0

    run(ask())


def test_answers_are_bounded_by_number_and_bytes() -> None:
    async def ask() -> None:
        cache = app.AnswerCache()
        for number in range(2 * app.CACHED_MAX):
            assert await cache.get(number, lambda: b"small") == b"small"
        assert len(cache._found) == app.CACHED_MAX
        part = bytes(app.CACHED_BYTES_MAX // 3)
        for number in range(8):
            assert await cache.get(f"large {number}", lambda: part) == part
            assert cache._bytes <= app.CACHED_BYTES_MAX
        assert cache._bytes == sum(len(found.result()) for found in cache._found.values())

    run(ask())


def test_the_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        monkeypatch.setattr(events, "STREAMS_MAX", 0)
        with console_of(three_nodes()) as world:
            answer = await world.http.get("/v1/events")
            assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")

    run(ask())


# ------------------------------------------------------------------------------------------------------- changes


async def send(world: World, value: Any, path: str = "/v1/commands", **headers: str) -> tuple[int, Any]:
    given = {"content-type": "application/json"} | BEARER | headers
    answer = await world.http.post(path, content=json.dumps(value), headers=given)
    return answer.status_code, answer.json()


CREATE = {"command": "CreateKeyspace", "name": "late", "replication": {"strategy": "simple", "factor": 3}}


def test_a_rehearsal_shows_the_difference_and_changes_nothing() -> None:
    async def ask() -> None:
        with console_of(three_nodes()) as world:
            epoch = world.hub.state.epoch
            status, found = await send(
                world, {"commands": [CREATE, {"command": "Leave", "node": "n1"}]}, "/v1/rehearsals"
            )
            assert (status, found["accepted"], found["epoch"]) == (200, False, epoch)
            assert [one.get("code") for one in found["results"]] == [None, "replication_impossible"]
            assert "keyspaces" in found["difference"]["sections"]
            assert world.cluster.state.epoch == epoch
            status, found = await send(world, {"command": "Nothing"}, "/v1/rehearsals")
            assert (status, found["code"]) == (400, "unknown_command")

    run(ask())


def test_a_rehearsed_command_is_submitted_once_with_its_values() -> None:
    async def ask() -> None:
        cluster = three_nodes()
        cluster.add_nodes(1, tokens=0, datacenter="dc1", rack="r1")
        with console_of(cluster, USERS, allows_changes=True) as world:
            join = {"command": "Join", "node": "n4", "num_tokens": 4}
            _, rehearsed = await send(world, join, "/v1/rehearsals")
            (resolved,) = rehearsed["commands"]
            path = f"/v1/commands?since={rehearsed['epoch']}"
            key = {"idempotency-key": "018bcfe5-6800-7000-aadd-b6bb876dbc82"}
            status, first = await send(world, resolved, path, **key)
            assert (status, first["outcome"]) == (200, "applied")
            assert await send(world, resolved, path, **key) == (200, first)
            operation = cluster.state.operations[first["operation"]]
            assert sorted(operation.tokens) == sorted(resolved["tokens"])
            _, log = 200, (await world.http.get("/v1/log?by=ann", headers=BEARER)).json()
            assert [line["entry"]["command"] for line in log["lines"]] == ["Join"]

    run(ask())


def test_a_rejection_is_a_problem_with_its_code() -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS, allows_changes=True) as world:
            status, found = await send(world, CREATE | {"name": "app"})
            assert (status, found["code"], found["type"]) == (
                409,
                "keyspace_exists",
                "urn:ringlog:code:keyspace_exists",
            )
            assert (await send(world, CREATE, **{"idempotency-key": "k"}))[1]["code"] == "bad_field"
            text = await world.http.post(
                "/v1/commands", content=b"{", headers=BEARER | {"content-type": "application/json"}
            )
            assert (text.status_code, text.json()["code"]) == (400, "bad_json")
            form = await world.http.post("/v1/commands", content=json.dumps(CREATE), headers=BEARER)
            assert form.status_code == 415
            large = b" " * 300_000
            long = await world.http.post(
                "/v1/commands", content=large, headers=BEARER | {"content-type": "application/json"}
            )
            assert long.status_code == 413

    run(ask())


def test_a_read_only_console_submits_nothing() -> None:
    async def ask() -> None:
        with console_of(three_nodes(), USERS) as world:
            epoch = world.cluster.state.epoch
            status, found = await send(world, CREATE)
            assert (status, found["code"], world.cluster.state.epoch) == (403, "not_authorized", epoch)

    run(ask())


def refusal(state: ClusterState, user: str, value: Any) -> tuple[int, str]:
    """Return status and code of a submission that the console refuses itself."""

    def unused(_: str) -> Any:
        raise AssertionError("the console sends a request that it must refuse")

    found = changing.submit(unused, state, user, value)
    return found["status"], found["code"]


def guarded(*made: Command) -> ClusterState:
    """Return a cluster with the admins ann and bob and the application cy, after these commands of ann."""
    state = entries.with_normal_nodes(entries.founded(), 3)
    people = (("ann", "admin"), ("bob", "admin"), ("cy", "application"))
    for command in (*(commands.CreatePrincipal(*one) for one in people), commands.create_keyspace("app", 3), *made):
        state = entries.applied(state, command)
    return state


@pytest.mark.parametrize("user", ["cy", "unknown", "", "console"])
def test_a_user_has_at_most_the_rights_of_the_principal_with_that_name(user: str) -> None:
    state = guarded()
    assert refusal(state, user, CREATE) == (403, "not_authorized")
    made = changing.resolve(state, CREATE)
    assert not isinstance(made, InvalidCommand)
    assert changing.unauthorized(state, "ann", made) is None


def test_a_plan_that_needs_a_second_principal_is_not_approved_in_the_name_of_the_console() -> None:
    drop, late = commands.DropKeyspace("app"), commands.create_keyspace("late", 3)
    made = (
        commands.RequireApprovals(("DropKeyspace",)),
        commands.stage_plan("drop", drop),
        commands.stage_plan("late", late),
    )
    state = guarded(*made)
    staged = {name: replace(plan, author="ann") for name, plan in state.plans.items()}
    state = replace(state, plans=Map(staged))
    approve = {"command": "ApprovePlan", "plan": "drop", "staged": state.plans["drop"].staged}
    assert refusal(state, "bob", approve) == (403, "approval_needed")
    assert refusal(state, "bob", {"command": "DropKeyspace", "name": "app"}) == (403, "approval_needed")
