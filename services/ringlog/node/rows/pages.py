"""Streams of pages: what a source sends and a gaining node accepts, whatever the pages hold.

Each page has the sum and the count of its body, and the last message those of all bodies of the call. So no page is
kept that is not whole, and a stream that ends early is not taken for one that is complete.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ringlog.kernel.values import Epoch, NodeId
from ringlog.wire.data import WRONG_NODE, StreamPage

T = TypeVar("T")

Body = tuple[bytes, int]
"""Bytes, and how many items they hold."""


class StreamBroken(Exception):
    """The stream does not go on; ``code``: of the source's refusal, if it refused. What came before is whole."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


def sent(node: NodeId, epoch: Epoch, bodies: Iterable[Body]) -> Iterator[StreamPage]:
    """The messages of a whole stream."""
    total = items = 0
    for body, count in bodies:
        total, items = zlib.crc32(body, total), items + count
        yield StreamPage(node, epoch, body=body, crc=zlib.crc32(body), count=count)
    yield StreamPage(node, epoch, crc=total, count=items, is_end=True)


def received(pages: Iterable[StreamPage], source: NodeId) -> Iterator[Body]:
    """The bodies of a stream of ``source``, each checked; ends with its end. Raises StreamBroken."""
    total = items = 0
    for page in pages:
        if page.node != source:
            raise StreamBroken(f"{page.node} answers in place of {source}", WRONG_NODE)
        if page.refused:
            raise StreamBroken(f"{page.refused} at epoch {page.epoch}: {page.detail}", page.refused)
        if page.is_end:
            if (page.count, page.crc) != (items, total):
                raise StreamBroken(f"{page.count} items of sum {page.crc} announced, {items} of {total} came")
            return
        if zlib.crc32(page.body) != page.crc:
            raise StreamBroken(f"a page of {len(page.body)} bytes does not have the sum that it names")
        total, items = zlib.crc32(page.body, total), items + page.count
        yield page.body, page.count
    raise StreamBroken("it ended without an end")


def grouped(items: Iterable[tuple[T, int]], page_bytes: int) -> Iterator[tuple[T, ...]]:
    """Items, each with its size, in groups that end where they reach ``page_bytes``."""
    group: list[T] = []
    size = 0
    for item, item_bytes in items:
        group.append(item)
        size += item_bytes
        if size >= page_bytes:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)
