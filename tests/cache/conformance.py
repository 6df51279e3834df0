"""Conformance suite of all caches: each adapter's tests inherit it and provide an empty ``cache``."""

from __future__ import annotations

import itertools

import pytest

from ringlog.cache.port import CLOCK_SKEW_MAX_US, FOREIGN_ACTIVE_US, CacheStore, Confirmation, StoredEpoch, WriteOutcome
from ringlog.cache.projection import CacheDelta, Stamp, delta, full_projection, project, stamp_of
from ringlog.cache.reader import CachedReader, CacheNotReady
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import replace

from .states import another_cluster, history

AT = 1_700_000_000_000_000


def confirmed(at: int = AT) -> Confirmation:
    return Confirmation("digest", 7, at)


def stored_stamp(cache: CacheStore) -> Stamp:
    """Return the stamp of the stored state."""
    found = cache.confirmed()
    assert found is not None
    return found[0]


def stored_in(cache: CacheStore) -> StoredEpoch:
    """Return all stored fields."""
    found = cache.read()
    assert found is not None
    return found


def not_yet(reader: CachedReader, reason: str) -> None:
    """Check that the reader must retry."""
    with pytest.raises(CacheNotReady) as refused:
        reader.read()
    assert refused.value.reason == reason


class CacheConformance:
    """A cache stores one epoch at a time, switches atomically and never goes backwards."""

    def test_nothing_is_stored_at_first(self, cache: CacheStore) -> None:
        assert cache.read() is None
        assert cache.confirmed() is None

    def test_a_full_projection_is_read_back_whole(self, cache: CacheStore) -> None:
        state = history()[-1]
        assert cache.apply(full_projection(state), confirmed()) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert stored.stamp == stamp_of(state)
        assert stored.parts == project(state)
        assert stored.confirmation == confirmed()

    def test_differences_lead_from_epoch_to_epoch(self, cache: CacheStore) -> None:
        states = history()
        cache.apply(full_projection(states[0]), confirmed())
        for before, after in itertools.pairwise(states):
            assert cache.apply(delta(before, after), confirmed()) is WriteOutcome.APPLIED
            stored = stored_in(cache)
            assert (stored.stamp, stored.parts) == (stamp_of(after), project(after))

    def test_a_difference_may_span_epochs(self, cache: CacheStore) -> None:
        states = history()
        cache.apply(full_projection(states[0]), confirmed())
        assert cache.apply(delta(states[0], states[-1]), confirmed()) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert stored.parts == project(states[-1])

    def test_a_difference_needs_the_state_that_it_starts_from(self, cache: CacheStore) -> None:
        states = history()
        write = delta(states[1], states[2])
        assert cache.apply(write, confirmed()) is WriteOutcome.BASE_MISSING
        assert cache.read() is None
        cache.apply(full_projection(states[0]), confirmed())
        assert cache.apply(write, confirmed()) is WriteOutcome.BASE_MISSING
        assert stored_stamp(cache) == stamp_of(states[0])

    def test_it_never_goes_backwards(self, cache: CacheStore) -> None:
        states = history()
        cache.apply(full_projection(states[-1]), confirmed())
        assert cache.apply(full_projection(states[1]), confirmed()) is WriteOutcome.LATER_STORED
        assert cache.apply(delta(states[0], states[1]), confirmed()) is WriteOutcome.LATER_STORED
        assert stored_stamp(cache) == stamp_of(states[-1])

    def test_a_later_epoch_missing_in_the_log_is_replaced(self, cache: CacheStore) -> None:
        states = history()
        reader = CachedReader(cache, lambda: AT)
        cache.apply(full_projection(states[-1]), confirmed())
        assert reader.read().epoch == states[-1].epoch
        for other in (stamp_of(states[-2]), replace(stamp_of(states[-1]), state_id="another"), None):
            assert cache.apply(full_projection(states[1], other), confirmed()) is WriteOutcome.LATER_STORED
        assert cache.apply(full_projection(states[1], stamp_of(states[-1])), confirmed()) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert (stored.stamp, stored.parts) == (stamp_of(states[1]), project(states[1]))
        not_yet(reader, "older")
        assert cache.apply(full_projection(states[-1], stamp_of(states[-2])), confirmed()) is WriteOutcome.APPLIED

    def test_a_confirmation_by_a_clock_that_was_ahead_does_not_last(self, cache: CacheStore) -> None:
        """Otherwise an unconfirmed state looks fresh until that time has come."""
        state = history()[-1]
        for ahead, wanted in (
            (CLOCK_SKEW_MAX_US - 1, AT + CLOCK_SKEW_MAX_US - 1),
            (CLOCK_SKEW_MAX_US, AT),
            (365 * 86_400 * 1_000_000, AT),
        ):
            for write in (full_projection(state), delta(state, state)):
                cache.apply(full_projection(state), confirmed(AT + 2 * ahead + 2 * CLOCK_SKEW_MAX_US))
                cache.apply(full_projection(state), confirmed(AT + ahead))
                assert cache.apply(write, confirmed()) is WriteOutcome.APPLIED
                found = cache.confirmed()
                assert found is not None
                assert found[1].confirmed_at == wanted

    def test_the_same_state_again_confirms_it(self, cache: CacheStore) -> None:
        state = history()[-1]
        cache.apply(full_projection(state), confirmed())
        for write in (full_projection(state), delta(state, state), delta(history()[0], state)):
            assert cache.apply(write, confirmed(AT + 5)) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert stored.confirmation.confirmed_at == AT + 5
        assert cache.apply(full_projection(state), confirmed(AT + 1)) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert stored.confirmation.confirmed_at == AT + 5

    def test_two_clusters_of_one_name_do_not_overwrite_each_other(self, cache: CacheStore) -> None:
        state, other = history()[-1], another_cluster()
        reader = CachedReader(cache, lambda: AT)
        cache.apply(full_projection(state), confirmed())
        assert reader.read().cluster_id == state.cluster_id
        for at in (AT - FOREIGN_ACTIVE_US + 1, AT, AT + FOREIGN_ACTIVE_US - 1):
            assert cache.apply(full_projection(other), confirmed(at)) is WriteOutcome.FOREIGN
        assert cache.apply(delta(state, state), confirmed(AT + 5)) is WriteOutcome.APPLIED
        assert cache.apply(full_projection(other), confirmed(AT + FOREIGN_ACTIVE_US)) is WriteOutcome.FOREIGN
        assert stored_stamp(cache) == stamp_of(state)
        assert cache.apply(full_projection(other), confirmed(AT + 5 + FOREIGN_ACTIVE_US)) is WriteOutcome.APPLIED
        not_yet(reader, "another_cluster")
        assert CachedReader(cache, lambda: AT).read().cluster_id == other.cluster_id

    def test_another_cluster_of_the_same_name_replaces_it(self, cache: CacheStore) -> None:
        cache.apply(full_projection(history()[-1]), confirmed(AT - FOREIGN_ACTIVE_US))
        other = another_cluster()
        assert isinstance(delta(EMPTY_STATE, other), CacheDelta)
        assert cache.apply(delta(EMPTY_STATE, other), confirmed()) is WriteOutcome.BASE_MISSING
        assert cache.apply(full_projection(other), confirmed()) is WriteOutcome.APPLIED
        stored = stored_in(cache)
        assert stored.parts == project(other)

    def test_removed_fields_are_deleted(self, cache: CacheStore) -> None:
        states = history()
        with_keyspace = next(state for state in states if len(state.keyspaces))
        without = states[-1]
        assert not without.keyspaces
        cache.apply(full_projection(with_keyspace), confirmed())
        cache.apply(delta(with_keyspace, without), confirmed())
        stored = stored_in(cache)
        assert stored.parts["keyspaces"] == {}

    def test_readers_get_one_epoch_with_its_age(self, cache: CacheStore) -> None:
        state = history()[-1]
        reader = CachedReader(cache, lambda: AT + 2_500_000)
        not_yet(reader, "empty")
        cache.apply(full_projection(state), confirmed())
        view = reader.read()
        assert (view.cluster_id, view.epoch, view.age_s) == (state.cluster_id, state.epoch, 2.5)
        assert sorted(view.nodes) == sorted(state.nodes)
        for node in state.nodes.values():
            assert view.nodes[node.id]["tokens"] == list(node.tokens)

    def test_a_confirmation_has_its_time(self, cache: CacheStore) -> None:
        state = history()[-1]
        cache.apply(full_projection(state), confirmed())
        assert cache.confirmed() == (stamp_of(state), confirmed())
        cache.apply(delta(state, state), confirmed(AT + 5))
        assert cache.confirmed() == (stamp_of(state), confirmed(AT + 5))

    def test_a_reader_fetches_the_parts_of_an_epoch_once(
        self, cache: CacheStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fetched = []
        read = cache.read
        monkeypatch.setattr(cache, "read", lambda: fetched.append(1) or read())
        *_, before, after = history()
        reader = CachedReader(cache, lambda: AT + 9)
        cache.apply(full_projection(before), confirmed())
        first = reader.read()
        cache.apply(delta(before, before), confirmed(AT + 9))
        again = reader.read()
        assert (again.epoch, again.age_s, len(fetched)) == (before.epoch, 0.0, 1)
        assert again.parts == first.parts
        cache.apply(delta(before, after), confirmed(AT + 9))
        assert (reader.read().epoch, len(fetched)) == (after.epoch, 2)

    def test_a_reader_never_sees_a_lower_epoch_than_before(self, cache: CacheStore) -> None:
        states = history()
        reader = CachedReader(cache, lambda: AT)
        cache.apply(full_projection(states[-1]), confirmed())
        reader.read()
        self.clear(cache)
        cache.apply(full_projection(states[0]), confirmed())
        not_yet(reader, "older")
        cache.apply(full_projection(states[-1]), confirmed())
        assert reader.read().epoch == states[-1].epoch

    def clear(self, cache: CacheStore) -> None:
        """Delete the content, as FLUSHALL does."""
        raise NotImplementedError
