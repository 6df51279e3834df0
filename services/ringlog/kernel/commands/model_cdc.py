"""The commands of CDC generations and writers; imported through ``model``, with which they make one vocabulary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationRange:
    """One range of a generation, stored under its end token.

    ``streams``: 16-byte stream ids in slot order, slot j for shard j of the range's owner. **Slot order is data**:
    a reader that sorts them loses the mapping. ``ignore_msb``: the owner's number of ignored bits.
    """

    end: int
    ignore_msb: int
    streams: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """``offset`` = the first offset not covered, of ``partition`` of the CDC topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RequestCdcGeneration:
    """Check and repair: a new generation unless the current one is optimal.

    ``seed``: 16 random bytes for its streams.
    """

    seed: bytes


@dataclass(frozen=True, slots=True)
class PutCdcGenerationData:
    """Part ``part`` (from 0) of ``parts`` of the ranges of a generation that is being prepared."""

    generation: str
    part: int
    parts: int
    ranges: tuple[GenerationRange, ...]


@dataclass(frozen=True, slots=True)
class RegisterCdcWriter:
    """A new incarnation of a CDC writer; it ends the earlier ones of that name.

    ``source``: the topic that it logs, which nobody else may; empty: it does not say, as writers of the first release.
    """

    writer: str
    incarnation: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class AdvanceCdcWriter:
    """Promise of a writer: it routes only writes below ``horizon``.

    All below ``low_watermark`` is durable up to ``positions``. ``decided``: positions of its source; what becomes of
    each write below them is decided and durable, also where nothing does.
    """

    writer: str
    incarnation: str
    horizon: int
    low_watermark: int
    positions: tuple[Position, ...] = ()
    decided: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitCdcGeneration:
    """The generation operates from ``timestamp`` (microseconds) on. ``digest``: hex SHA-256 of its ranges."""

    generation: str
    timestamp: int
    digest: str


@dataclass(frozen=True, slots=True)
class PublishCdcGeneration:
    """The committed generation's description is in the change topics."""

    generation: str


@dataclass(frozen=True, slots=True)
class CloseCdcGeneration:
    """Every registered writer is done with the generation; consumers may move on after its recorded positions.

    ``unwatched``: close it also if no writer is registered, and nobody logs what lies in it. ``closed_at``: the
    author's clock, microseconds, from which the retention of the rows counts.
    """

    generation: str
    unwatched: bool = False
    closed_at: int = 0


@dataclass(frozen=True, slots=True)
class ExpireCdcGeneration:
    """No row of the closed generation is kept any more at ``expired_at`` (microseconds)."""

    generation: str
    expired_at: int


@dataclass(frozen=True, slots=True)
class ForgetCdcGeneration:
    """The expired generation's streams leave the state; its id, times, numbers and digest stay."""

    generation: str


@dataclass(frozen=True, slots=True)
class FenceCdcWriter:
    """The writer's incarnation, and all before it, have lost the right to write the CDC topic for ever.

    ``positions``: where the topic ended after that; nothing of theirs lies behind. ``reason``: the operator's words.
    """

    writer: str
    incarnation: str
    positions: tuple[Position, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LowerCdcWriter:
    """A fenced writer has used nothing at or above ``horizon``, though it had promised more (a clock was ahead).

    ``reason``: the operator's words, with how it is known.
    """

    writer: str
    incarnation: str
    horizon: int
    reason: str


@dataclass(frozen=True, slots=True)
class WithdrawCdcGeneration:
    """The last generation, which lies far ahead and which nobody has used, goes (it was committed by a wrong clock).

    ``seed``: 16 random bytes for the streams of one that takes its place; ``reason``: the operator's words.
    """

    generation: str
    seed: bytes
    reason: str
