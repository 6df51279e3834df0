"""The public surface: ``import ringlog``. The list of public names is in ``docs/reference/python.md``."""

from __future__ import annotations

import ast
import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import ringlog
from ringlog import AsyncClient, Client, commands
from ringlog.client.client import Logs
from ringlog.extras import ExtraMissing
from ringlog.kernel.registry import COMMANDS
from ringlog.runtime.context import ClusterContext, remove_clusters, store_cluster
from tests.client.mini_validator import MiniValidator

NODE = commands.register_node("n1", "127.0.0.1:7001")
SAME = ("submit", "submit_future", "submit_many", "withdraw", "read_barrier", "strict_barrier", "wait_for", "state_at")


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for name in ringlog.__all__:
        found = getattr(ringlog, name)
        assert inspect.getdoc(found) or not callable(found), name


def test_type_checkers_see_the_names_that_exist() -> None:
    tree = ast.parse(Path(str(ringlog.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen.pop("commands") == "ringlog"
    assert seen == ringlog._PLACES
    assert {*seen, "commands", "FEATURES"} == {*ringlog.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        ringlog.Clinet  # noqa: B018


def test_the_import_loads_no_module_behind_the_names() -> None:
    code = "import sys, ringlog; print([n for n in sys.modules if n.startswith('ringlog.') or n in ('numpy', 'grpc')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_commands_has_every_command() -> None:
    assert {*COMMANDS} < {*commands.__all__}
    assert all(getattr(commands, name) is made for name, made in COMMANDS.items())
    assert all(hasattr(commands, name) for name in commands.__all__)


@pytest.mark.parametrize("name", SAME)
def test_both_clients_have_the_same_arguments(name: str) -> None:
    mine, other = (inspect.signature(getattr(one, name)) for one in (Client, AsyncClient))
    assert mine.parameters == other.parameters
    assert name == "submit_future" or inspect.iscoroutinefunction(getattr(AsyncClient, name))


def test_public_methods_of_the_client_exist_for_event_loops() -> None:
    public = {name for name in vars(Client) if not name.startswith("_")}
    assert public - {*vars(AsyncClient)} == {"catch_up", "follow"}, "of processes that wait without a deadline"


def test_constructors_choose_what_the_caller_leaves_out(client: Client, logs: Logs) -> None:
    with MiniValidator(logs, "v1"):
        assert isinstance(client.submit(NODE), ringlog.AppliedResult)
        assert isinstance(client.submit(commands.join("n1", 4)), ringlog.AppliedResult)
        refused = client.submit(commands.leave("n1")), client.submit(commands.create_zone("z", partitions=4))
    assert [operation.node for operation in client.read_barrier().operations.values()] == [NODE.id]
    for answer, code in zip(refused, ("wrong_node_state", "no_data_nodes"), strict=True):
        assert isinstance(answer, ringlog.RejectedResult)
        assert answer.code == code


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("CreateKeyspace", "'CreateKeyspace' is not a command"),
        (commands.Noop, "is not a command"),
        (commands.DropKeyspace(5), "DropKeyspace: name: must be str, not int"),  # type: ignore[arg-type]
        (
            commands.create_table("k", "t", {"a": 1}, partition_key=["a"]),
            r"CreateTable: columns\[0\].type: must be str",
        ),  # type: ignore[dict-item]
        (commands.join("n1", 0), "num_tokens: must be between 1 and"),
    ],
)
def test_what_cannot_be_sent_names_the_field(client: Client, command: commands.Command, why: str) -> None:
    with pytest.raises(ringlog.InvalidSubmission, match=why) as error:
        client.submit(command)
    assert (error.value.code, error.value.retriable) == ("invalid_submission", False)
    assert error.value.hint


def test_a_wrong_request_id_is_named(client: Client) -> None:
    with pytest.raises(ringlog.InvalidSubmission, match="request_id: 'abc' is not a UUID"):
        client.submit(commands.Noop(), request_id="abc", since_epoch=1)


def test_a_submission_has_its_id_before_the_answer_and_cannot_be_cancelled(client: Client, logs: Logs) -> None:
    waits = client.submit_future(commands.Noop())
    assert not waits.cancel()
    with MiniValidator(logs, "v1"):
        answer = waits.result(60)
    assert answer.request_id == waits.request_id
    assert waits.since_epoch < client.read_barrier().epoch


def test_a_time_out_is_a_timeout_error_with_the_command_that_was_sent(client: Client, logs: Logs) -> None:
    client.direct.submit(NODE)
    client.read_barrier()
    with pytest.raises(TimeoutError) as error:
        client.submit(commands.join("n1", 4), timeout_s=0)
    late = error.value
    assert isinstance(late, ringlog.SubmissionTimedOut)
    assert late.retriable
    again = {"request_id": late.request_id, "since_epoch": late.since_epoch}
    with pytest.raises(ringlog.InvalidSubmission, match="another command at each attempt"):
        client.submit(commands.join("n1", 4), **again)  # type: ignore[arg-type]
    assert isinstance(late.command, commands.Join)
    with MiniValidator(logs, "v1"):
        assert client.submit(late.command, **again).request_id == late.request_id  # type: ignore[arg-type]
    assert len(client.read_barrier().operations) == 1


def test_a_broker_that_is_down_is_reported_with_its_address() -> None:
    with pytest.raises(ringlog.LogUnavailable, match=r"^127\.0\.0\.1:1: ") as error:
        ringlog.connect("127.0.0.1:1", "shop", timeout_s=1)
    assert error.value.retriable


def test_without_arguments_variables_or_a_cluster_in_use_nothing_is_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RINGLOG_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("RINGLOG_CLUSTER", raising=False)
    store_cluster(ClusterContext("127.0.0.1:2", "other", ""))
    with pytest.raises(ringlog.NoClusterGiven, match="ringlog cluster use NAME"):
        ringlog.connect("127.0.0.1:1")
    with pytest.raises(ringlog.LogUnavailable, match=r"127\.0\.0\.1:2"):
        ringlog.connect(timeout_s=1)
    remove_clusters(lambda _: True)
    with pytest.raises(ringlog.NoClusterGiven, match="ringlog cluster use NAME"):
        ringlog.connect()
    monkeypatch.setenv("RINGLOG_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("RINGLOG_CLUSTER", "shop")
    with pytest.raises(ringlog.LogUnavailable, match=r"127\.0\.0\.1:1"):
        ringlog.connect(timeout_s=1)


ERRORS = (
    ringlog.SubmissionTimedOut("id", 7, 1.5, "an answer"),
    ringlog.ReplicaHalted("code", "detail", 3, "hint"),
    ringlog.InvalidSubmission("message", "hint"),
    ringlog.WireError("code", "field", "rule"),
    ExtraMissing("redis", "redis"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_passes_between_processes(error: ringlog.RinglogError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), vars(twin)) == (str(error), vars(error))


# ------------------------------------------------------------------------------------------------------- changes


def applied(client: Client, *several: commands.Command) -> list[int]:
    answers = [client.direct.submit(one) for one in several]
    assert all(isinstance(one, ringlog.AppliedResult) for one in answers), answers
    return [one.epoch for one in answers if isinstance(one, ringlog.AppliedResult)]


def test_changes_since_an_epoch_are_complete_and_go_on(client: Client) -> None:
    first, *_ = applied(client, commands.Noop(), NODE, commands.Noop())
    with client.changes(since=first) as changes:
        epochs = [next(changes).after.epoch for _ in range(2)]
        (later,) = applied(client, commands.Noop())
        change = next(changes)
    assert [*epochs, change.after.epoch] == [first + 1, first + 2, later]
    assert (change.entry.kind, change.before.epoch) == ("Noop", later - 1)


def test_changes_of_a_section_leave_others_out(client: Client) -> None:
    start = client.state.epoch
    _, made, _ = applied(client, commands.Noop(), NODE, commands.Noop())
    with client.changes(since=start, of=("nodes",)) as changes:
        assert next(changes).after.epoch == made
    with pytest.raises(ValueError, match="of: places is not a section: "):
        client.changes(of=("places",))


def test_changes_begin_after_the_newest_epoch_by_default(client: Client) -> None:
    applied(client, commands.Noop())
    client.read_barrier()
    with client.changes() as changes:
        (next_one,) = applied(client, commands.Noop())
        assert next(changes).after.epoch == next_one


def test_changes_end_with_the_client(logs: Logs) -> None:
    with Client("", "tests", "tester", logs=logs) as client:
        changes = client.changes()
    with pytest.raises(ringlog.LogError):
        next(changes)


def test_a_closed_iterator_ends(client: Client) -> None:
    changes = client.changes()
    changes.close()
    assert list(changes) == []


def test_the_state_at_an_epoch(client: Client) -> None:
    before, made = applied(client, commands.Noop(), NODE)
    applied(client, commands.Noop())
    assert (client.state_at(before).epoch, len(client.state_at(before).nodes)) == (before, 0)
    assert len(client.state_at(made).nodes) == 1
    with pytest.raises(ringlog.EpochUnknown, match=f"ends with epoch {made + 1}"):
        client.state_at(made + 2)


def test_the_client_for_event_loops_submits_and_follows(logs: Logs) -> None:
    async def run() -> list[str]:
        inner = Client("", "tests", "tester", logs=logs).start()
        async with AsyncClient("", "tests", client=inner) as client:
            changes = client.changes(since=client.state.epoch, of=("nodes",))
            with MiniValidator(logs, "v1"):
                answers = [await client.submit(one) for one in (NODE, NODE, commands.join("n1", 2))]
            assert [type(one) for one in answers[:2]] == [ringlog.AppliedResult, ringlog.RejectedResult]
            async for change in changes:
                changes.close()
                return [node.name for node in change.after.nodes.values()]
        raise AssertionError("the iteration has no end before its close")

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ["n1"]


def test_waits_leave_the_threads_of_the_event_loop_free(logs: Logs) -> None:
    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        inner = Client("", "tests", "tester", logs=logs).start()
        async with AsyncClient("", "tests", client=inner) as client:
            waits = [
                asyncio.ensure_future(one)
                for one in (anext(client.changes()), client.wait_for(lambda _: None, 3600, "nothing"))
            ]
            ended, _ = await asyncio.wait(waits, timeout=0)
            assert not ended
            await client.read_barrier()
            await asyncio.to_thread(int)
            for wait in waits:
                wait.cancel()
            assert all(
                isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waits, return_exceptions=True)
            )

    asyncio.run(asyncio.wait_for(run(), 60))
