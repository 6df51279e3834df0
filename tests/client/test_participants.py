"""The contract of stores: ``Duties`` in memory, with a crash at each kind of call, and stores with planted bugs."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from ringlog import FEATURES, ClusterState, Gain, Loss, NodeInfo
from ringlog.client.participant.duties import Duties
from ringlog.client.routing import replicas
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog_testing.participants import RING, TABLE, StoreStory, check_store, create


class FileStore:
    """Rows in one file for each row. ``at``: the running stores by address, for fetches."""

    at: dict[str, FileStore]

    def __init__(self, name: str, folder: Path) -> None:
        self.address, self.folder, self.state, self.drained = f"{name}:1", folder / "rows", EMPTY_STATE, 0
        self.store = self
        self.folder.mkdir(exist_ok=True)
        self.at[self.address] = self

    def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        assert after.epoch > self.state.epoch
        assert (before is None) == (self.state is EMPTY_STATE)
        self.state = after

    def drain(self, below: int) -> None:
        assert below == self.state.epoch, "drained after it was adopted"
        self.drained = below

    def fetch(self, gain: Gain) -> Iterator[bytes]:
        assert self.drained >= gain.epoch
        source = self.at[gain.source.address]
        if source.drained < gain.epoch:
            raise ConnectionError("behind")
        for place, key in source.rows(gain):
            self.put(place, key)
            yield key

    def forget(self, loss: Loss) -> None:
        for place, key in self.rows(loss):
            self._file(place, key).unlink()

    def rows(self, part: Loss) -> list[tuple[str, bytes]]:
        found = [json.loads(path.read_text()) for path in sorted(self.folder.iterdir())]
        return [(place, key.encode()) for place, key, token in found if part.has(place, token)]

    def put(self, place: str, key: bytes) -> None:
        token = replicas(self.state, place, key).token
        self._file(place, key).write_text(json.dumps([place, key.decode(), token]))

    def has(self, place: str, key: bytes) -> bool:
        return self._file(place, key).exists()

    def kill(self) -> None:
        self.at.pop(self.address, None)

    def _file(self, place: str, key: bytes) -> Path:
        return self.folder / f"{place}-{key.decode()}"


class Forgetful(FileStore):
    """Rows that it does not delete."""

    def forget(self, loss: Loss) -> None:
        pass


class Hasty(FileStore):
    """Rows that it reports without keeping them."""

    def fetch(self, gain: Gain) -> Iterator[bytes]:
        for _, key in self.at[gain.source.address].rows(gain):
            yield key


class Volatile(FileStore):
    """Rows that a crash loses."""

    def kill(self) -> None:
        super().kill()
        shutil.rmtree(self.folder)


class Eager(FileStore):
    """Deletes more than it must."""

    def forget(self, loss: Loss) -> None:
        for path in self.folder.iterdir():
            path.unlink()


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileStore, "at", {}, raising=False)


def test_a_node_announces_every_feature_of_this_release() -> None:
    assert NodeInfo("s1", "127.0.0.1:1").features == FEATURES, "the participant does the work of each feature"


@pytest.mark.slow
def test_a_correct_store_passes_with_a_crash_at_each_kind_of_call(tmp_path: Path) -> None:
    assert check_store(FileStore, tmp_path) > 20


class AsyncFileStore:
    """``FileStore`` with coroutine functions."""

    def __init__(self, name: str, folder: Path, kind: type[FileStore] = FileStore) -> None:
        self._files = kind(name, folder)
        self.address, self.store = self._files.address, self
        self.put, self.has, self.kill = self._files.put, self._files.has, self._files.kill

    async def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
        self._files.adopt(before, after)

    async def drain(self, below: int) -> None:
        self._files.drain(below)

    async def fetch(self, gain: Gain) -> AsyncIterator[bytes]:
        for row in self._files.fetch(gain):
            yield row

    async def forget(self, loss: Loss) -> None:
        self._files.forget(loss)


def test_an_async_store_is_checked_alike(tmp_path: Path) -> None:
    assert check_store(AsyncFileStore, tmp_path / "correct", kills=8) > 8
    with pytest.raises(AssertionError, match="did not forget"):
        check_store(partial(AsyncFileStore, kind=Forgetful), tmp_path / "forgetful")


class Noted:
    """A folder that remembers an epoch, as after a long stop."""

    def __init__(self, adopted: int, places: frozenset[str], calls: list[str]) -> None:
        self.adopted, self.places, self._calls = adopted, places, calls

    def note_adopted(self, epoch: int, places: frozenset[str]) -> None:
        self._calls.append("note")
        self.adopted, self.places = epoch, places


def test_rows_of_a_range_that_was_lost_and_got_again_meanwhile_are_cleared_before_the_store_serves(
    tmp_path: Path,
) -> None:
    with ExitStack() as ending:
        story = StoreStory(FileStore, tmp_path, None, ending)
        create(story)
        story.move("a", (0, 1))
        before, node = story.state, story.nodes["a"].folder.node
        story.move("b", (0, 1))
        story.move("a", (0, 1))
        calls: list[str] = []

        class Calls(FileStore):
            def adopt(self, before: ClusterState | None, after: ClusterState) -> None:
                calls.append("adopt")

            def drain(self, below: int) -> None:
                calls.append("drain")

            def forget(self, loss: Loss) -> None:
                calls.append("forget")
                assert loss.places in ((TABLE,), ("gone.rows",))

        def restarted(epoch: int, place: str) -> list[str]:
            calls.clear()
            noted = Noted(epoch, frozenset({place}), calls)
            Duties(node, "9@x", Calls("x", tmp_path), noted, lambda _: None).turn(story.state)
            return calls

        assert restarted(before.epoch, TABLE) == ["forget", "note", "adopt", "drain"]
        assert restarted(story.state.epoch, TABLE) == ["note", "adopt", "drain"]
        assert restarted(before.epoch, "gone.rows") == ["note", "adopt", "drain", "forget", "note"]


def test_a_loss_has_one_range_for_neighbours(tmp_path: Path) -> None:
    losses: list[Loss] = []

    class Losing(FileStore):
        def forget(self, loss: Loss) -> None:
            losses.append(loss)

    with ExitStack() as ending:
        story = StoreStory(FileStore, tmp_path, None, ending)
        create(story)
        noted = Noted(story.state.epoch, frozenset({RING}), [])
        node = story.nodes["a"].folder.node
        Duties(node, "9@x", Losing("x", tmp_path), noted, lambda _: None).turn(story.state)
    (loss,) = losses
    assert len(loss.ranges) > 1
    assert not {start for start, _ in loss.ranges} & {end for _, end in loss.ranges}


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (Forgetful, "did not forget"),
        (Hasty, "lost"),
        (Volatile, "lost"),
        (Eager, "lost"),
    ],
)
def test_a_planted_bug_is_found(store: type[FileStore], why: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=why):
        check_store(store, tmp_path)
