"""Row states in memory, for the simulator and for tests, and the part that all stores share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ringlog_cdc.definition.image_states import is_common
from ringlog_cdc.definition.image_tables import ImageTable


class MemoryStates:
    """All states in memory, final as soon as they are set."""

    def __init__(self) -> None:
        self.states: dict[bytes, Any] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, name: str, table: ImageTable) -> int:
        """Return the number that identifies a table in keys."""
        return self._numbers.setdefault((name, table.id), len(self._numbers))

    def forget(self, name: str, table: str) -> None:
        """Delete the states of a table."""
        if (number := self._numbers.get((name, table))) is not None:
            for key in self.under(number.to_bytes(4, "big")):
                self.put(key, None)

    def get(self, key: bytes) -> Any:
        """Return the state of the key."""
        return self.states.get(key)

    def has_common(self, key: bytes) -> bool:
        """Return False if no partition of the key's table has a state with shared columns."""
        return any(is_common(found) for found in self.states if found[:4] == key[:4])

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Do nothing; reads from memory need no prefetch."""

    def put(self, key: bytes, value: Any) -> None:
        """Store a state; None deletes it."""
        if value is None:
            self.states.pop(key, None)
        else:
            self.states[key] = value

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys with this prefix."""
        return sorted(key for key in self.states if key.startswith(prefix))
