"""How far a node is behind the mutations topic, for who watches it from another thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import TopicPartition

from ringlog.node.tail import MutationsTail


class OneThread:
    """A client of which only the thread that made it may ask anything: another would stop both."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self._owner = threading.get_ident()

    def consume(self, _most: int, _wait_s: float) -> list[object]:
        assert threading.get_ident() == self._owner
        return []

    def get_watermark_offsets(self, place: TopicPartition, cached: bool) -> tuple[int, int]:
        assert threading.get_ident() == self._owner
        assert cached, "nobody waits for a broker here"
        return 0, self.ends[place.partition]


def test_who_watches_asks_the_reader_and_not_its_client() -> None:
    tail = MutationsTail("127.0.0.1:1", "c", "n1")
    tail.close()
    tail._consumer = OneThread({0: 10, 1: 5, 2: -1001})  # type: ignore[assignment]
    tail.ends = {0: 1, 1: 1, 2: 1}
    with ThreadPoolExecutor(1) as other:
        assert other.submit(tail.behind, {0: 4, 1: 9, 2: 0}).result() is None, "nothing was read yet"
        assert tail.take() == []
        assert other.submit(tail.behind, {0: 4, 1: 9, 2: 0}).result() == 6, "of a partition without news nothing counts"
        assert other.submit(tail.behind, {}).result() is None
