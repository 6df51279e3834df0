"""The store against a plain set of versions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.ring.ranges import in_range
from ringlog.node.store import RowStore, Version, checksum

versions = st.builds(
    Version,
    table=st.sampled_from(["a.t", "a.u"]),
    token=st.just(0),
    partition_key=st.sampled_from([b"", b"k", b"kk", b"l"]),
    clustering_key=st.lists(st.none() | st.binary(max_size=2), max_size=2).map(tuple),
    timestamp=st.integers(-3, 3),
    value=st.binary(max_size=2),
)


def placed(version: Version) -> Version:
    """As it is, under the token that its partition key has here."""
    return Version(
        version.table,
        (len(version.partition_key) - 1) * 10,
        version.partition_key,
        version.clustering_key,
        version.timestamp,
        version.value,
    )


@given(st.lists(versions.map(placed)), st.randoms(use_true_random=False))
def test_order_and_repetition_leave_no_trace(given_: list[Version], random: object) -> None:
    one, other = RowStore(), RowStore()
    for version in given_:
        one.add(version)
    mixed = given_ * 2
    random.shuffle(mixed)  # type: ignore[attr-defined]
    added = sum(other.add(version) for version in mixed)
    everything = ((0, 0),)
    assert len(one) == len(other) == added == len(set(given_))
    assert one.versions(everything) == other.versions(everything)
    assert set(one.versions(everything)) == set(given_)
    assert checksum(one.versions(everything)) == checksum(other.versions(everything))


@given(st.lists(versions.map(placed)), st.integers(-12, 12), st.integers(-12, 12))
def test_listing_and_keeping_by_token(given_: list[Version], start: int, end: int) -> None:
    store = RowStore()
    for version in given_:
        store.add(version)
    wanted = {v for v in given_ if v.table == "a.t" and in_range(v.token, start, end)}
    assert set(store.versions([(start, end)], ["a.t", "no.such"])) == wanted
    others = {v for v in given_ if v.table != "a.t"}
    dropped = store.keep("a.t", lambda token: in_range(token, start, end))
    assert dropped == len(set(given_)) - len(wanted | others)
    assert set(store.versions([(0, 0)])) == wanted | others
    assert len(store) == len(wanted | others)
    assert store.tables() == sorted({v.table for v in wanted | others})


@given(versions.map(placed), st.data())
def test_the_checksum_sees_every_field(version: Version, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(Version.__dataclass_fields__)))
    other = data.draw(versions.map(placed))
    fields = {field: getattr(version, field) for field in Version.__dataclass_fields__}
    fields[name] = getattr(other, name)
    changed = Version(**fields)
    assert (checksum([changed]) == checksum([version])) == (changed == version)
