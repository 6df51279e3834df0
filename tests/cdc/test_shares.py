"""Shares of the source partitions, and Spark's offset log with a line for each source."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.shares import SOURCES_MAX, batch_ends, decode_offsets, shares_of, sources_of


@given(st.integers(1, 100), st.integers(1, 1_000_000), st.none() | st.integers(1, 20))
def test_every_partition_is_read_by_one_source_with_an_equal_share(
    partitions: int, limit: int, sources: int | None
) -> None:
    shares = shares_of(partitions, limit, sources)
    assert len(shares) == min(partitions, sources or SOURCES_MAX)
    assert sorted(partition for share in shares for partition in share.partitions) == list(range(partitions))
    sizes = [len(share.partitions) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert len({share.limit for share in shares}) == 1
    assert limit <= sum(share.limit for share in shares) < limit + len(shares)


def test_a_checkpoint_keeps_its_number_of_sources(tmp_path: Path) -> None:
    assert sources_of(tmp_path) is None
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    assert sources_of(tmp_path) is None
    (offsets / ".10.crc").write_bytes(b"")
    (offsets / "9").write_text('v1\n{}\n{"t":{"0":1}}')
    assert sources_of(tmp_path) == 1
    (offsets / "10").write_text('v1\n{}\n{"t":{"0":1,"2":3}}\n-\n')
    assert sources_of(tmp_path) == 2
    assert batch_ends(tmp_path, 10, "t") == {0: 1, 2: 3}
    with pytest.raises(ChainBroken, match="no batch 11"):
        batch_ends(tmp_path, 11, "t")


def test_the_end_of_a_batch_is_that_of_all_its_sources() -> None:
    assert decode_offsets(b'v1\n{"batch":1}\n{"t":{"1":5}}\n-\n{"t":{"0":7,"2":0}}\n', "t") == {0: 7, 1: 5, 2: 0}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1",
        b"v1\n{}\n",
        b"v1\n{}\n-",
        b'v2\n{}\n{"t":{"0":1}}',
        b'v1\n{}\n{"u":{"0":1}}',
        b'v1\n{}\n{"t":{"0":1}}\n{"t":{"0":1}}',
        b'v1\n{}\n{"t":{"0":1.5}}',
        b'v1\n{}\n{"t":{"x":1}}',
        b'v1\n{}\n{"t":[]}',
        b"\xff",
    ],
)
def test_what_spark_would_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(ChainBroken, match="unreadable"):
        decode_offsets(data, "t")
