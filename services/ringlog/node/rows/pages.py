"""The page format of streams, independent of the content.

Each page has a checksum and a count of its body, and the last message has those of the whole call. So a receiver keeps
only intact pages, and does not mistake an interrupted stream for a complete one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ringlog.kernel.values import Epoch, NodeId
from ringlog.wire.data import WRONG_NODE, StreamPage

T = TypeVar("T")

Body = tuple[bytes, int]
"""Encoded items, and their number."""


class StreamBroken(Exception):
    """The stream cannot continue. All pages before it are intact.

    Attributes:
        code: The code of the source's refusal, or an empty string.
    """

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


def stream_messages(node: NodeId, epoch: Epoch, bodies: Iterable[Body]) -> Iterator[StreamPage]:
    """Yield the messages of a complete stream."""
    total = items = 0
    for body, count in bodies:
        total, items = zlib.crc32(body, total), items + count
        yield StreamPage(node, epoch, body=body, crc=zlib.crc32(body), count=count)
    yield StreamPage(node, epoch, crc=total, count=items, is_end=True)


def verified_bodies(pages: Iterable[StreamPage], source: NodeId) -> Iterator[Body]:
    """Yield the verified bodies of a stream, up to its end. Raises StreamBroken."""
    total = items = 0
    for page in pages:
        if page.node != source:
            raise StreamBroken(f"{page.node} answers in place of {source}", WRONG_NODE)
        if page.refused:
            raise StreamBroken(f"{page.refused} at epoch {page.epoch}: {page.detail}", page.refused)
        if page.is_end:
            if (page.count, page.crc) != (items, total):
                raise StreamBroken(
                    f"the last page announces {page.count} items of checksum {page.crc}, but {items} of {total} arrived"
                )
            return
        if zlib.crc32(page.body) != page.crc:
            raise StreamBroken(f"a page of {len(page.body)} bytes does not match its checksum")
        total, items = zlib.crc32(page.body, total), items + page.count
        yield page.body, page.count
    raise StreamBroken("the stream ended without its last page")


def grouped(items: Iterable[tuple[T, int]], page_bytes: int) -> Iterator[tuple[T, ...]]:
    """Yield items in groups. A group ends when its size reaches ``page_bytes``."""
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
