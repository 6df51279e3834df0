"""Which log this is: the topic's id and how far it was read, remembered so that another log under the same name is
noticed.

A topic that was deleted and made again has another id. A topic that lost its end has fewer records than were read.
Neither is the log that the state came from, and no reader may go on with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ringlog.log.errors import LogDamaged, LogReplaced, LogTruncated


@dataclass(frozen=True, slots=True)
class Recorded:
    """The topic's id and a position that was reached in it."""

    topic_id: str
    position: int


def check_identity(name: str, recorded: Recorded | None, topic_id: str, end: int) -> None:
    """Raises LogReplaced for another id, LogTruncated for an end below the recorded position."""
    if recorded is None:
        return
    if recorded.topic_id != topic_id:
        raise LogReplaced(
            f"{name} has the topic id {topic_id}, recorded is {recorded.topic_id}",
            "the topic was deleted and made again: restore it, or remove what was derived from the old one",
        )
    if end < recorded.position:
        raise LogTruncated(
            f"{name} ends at offset {end}, read were {recorded.position}",
            "the log lost records: restore it before starting anything",
        )


def load_record(path: Path) -> Recorded | None:
    """What was recorded; None if nothing was. Raises LogDamaged if the file cannot be understood."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        recorded = Recorded(found["topic_id"], found["position"])
        if type(recorded.topic_id) is not str or type(recorded.position) is not int or recorded.position < 0:
            raise TypeError("a topic's id is text, a position a whole number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogDamaged(f"{path} is no record of a topic", "look at it, then remove it to record anew") from error
    return recorded


def save_record(path: Path, recorded: Recorded) -> None:
    """Replace the file atomically, unless it knows a greater position of the same topic: that one is never forgotten.

    A reader replays from the beginning, and several may share the file. Raises OSError, LogDamaged.
    """
    known = load_record(path)
    if known is not None and known.topic_id == recorded.topic_id and known.position >= recorded.position:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps({"topic_id": recorded.topic_id, "position": recorded.position}), "utf-8")
    os.replace(draft, path)
