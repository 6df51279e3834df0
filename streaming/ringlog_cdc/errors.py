"""Errors of the CDC job. Each has a stable code, a sentence, and a hint for the next step.

Invariant: no content of the mutations topic can raise one of these, since bad input becomes dead letters. An error
means that the job must stop: its checkpoint or its right to write is in doubt, or it was asked to stop.
"""

from __future__ import annotations

import json
from pathlib import Path

from ringlog.errors import RinglogError


class CdcError(RinglogError):
    """The job stopped.

    Attributes:
        code: Stable code.
        message: The sentence.
        hint: The next step.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}" + (f" ({hint})" if hint else ""))
        self.code = code
        self.message = message
        self.hint = hint


class StopRequested(CdcError):
    """The job was asked to stop, and starts or awaits no more work."""

    def __init__(self) -> None:
        super().__init__("stop_requested", "the job was asked to stop")


class WriterReplaced(CdcError):
    """A newer incarnation of this writer has registered, so this one may no longer route."""

    def __init__(self, writer: str, mine: str, current: str) -> None:
        super().__init__(
            "writer_replaced",
            f"incarnation {mine} of CDC writer {writer!r} was replaced by {current or 'none'}",
            "another driver runs under this writer name; this driver has stopped and wrote nothing after it",
        )


class WriterNotAuthorized(CdcError):
    """The principal of this writer was revoked, or lost its role, so its promises are refused."""

    def __init__(self, writer: str, why: str) -> None:
        super().__init__(
            "not_authorized",
            f"CDC writer {writer!r}: {why}",
            "give the writer a principal with the role node; a revoked name cannot be used again",
        )


class PartitionsAdded(CdcError):
    """The source topic has more partitions than the job reads."""

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(
            "partitions_added",
            f"topic {topic} has {count} partitions, more than the job reads",
            "start the job again: it continues where it stopped, and reads the added partitions from their beginning",
        )


class ChainMoved(CdcError):
    """Another driver appended to the plan chain of this checkpoint."""

    def __init__(self, sequence: int) -> None:
        super().__init__(
            "plan_chain_moved",
            f"plan {sequence} of the checkpoint already exists, and another driver wrote it",
            "stop the other driver: only one driver may use a checkpoint",
        )


class ChainBroken(CdcError):
    """The stored plans contradict each other or the source."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "plan_chain_broken",
            message,
            (
                "the checkpoint was edited, or a part of it is lost; the job wrote nothing that relies on it. "
                "Restore the checkpoint"
            ),
        )


def source_in_use(why: str) -> CdcError:
    """Return the error for a writer whose source is processed by another writer."""
    return CdcError(
        "source_in_use",
        why,
        (
            "start the job under the name of that writer, with its checkpoint. If the checkpoint is lost: "
            "ringlog cdc fence"
        ),
    )


def other_version(path: Path | str, found: object, known: int) -> CdcError:
    """Return the error for a file of a checkpoint with another version, or without one (None)."""
    has = "no version" if found is None else f"version {json.dumps(found)[:20]}"
    return CdcError(
        "checkpoint_version",
        f"{path} has {has}, and this release reads version {known}",
        (
            "start the job with the release that wrote the checkpoint. If there is none, pass an empty folder as "
            "--checkpoint: the job then prints how to replace a lost checkpoint"
        ),
    )


def checkpoint_lost(writer: str) -> CdcError:
    """Return the error for a known writer with an empty checkpoint."""
    return CdcError(
        "checkpoint_lost",
        f"CDC writer {writer!r} has processed mutations, but this checkpoint is empty",
        (
            "start with the checkpoint of that writer. If it is lost: run 'ringlog cdc fence --writer "
            f"{writer} --reason ...', then 'ringlog cdc grant', and start again: the job finds the written "
            "rows in the topics and writes the missing ones"
        ),
    )
