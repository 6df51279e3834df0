"""A log in memory and the requests behind it, for the pure parts of the agents."""

from __future__ import annotations

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import Command
from ringlog.protocol.submission.results import CommitOutcome, EntryChain, commit_outcomes
from ringlog.runtime.draw import SeededDraw, draw_uuid
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import EncodedEntry, author_entry, decode_entry
from ringlog.wire.ids import new_state_id
from ringlog.wire.records import CommandRequest

NOW = 1_700_000_000_000_000

GOOD = ChangeSettings((("operations_kept_max", 7),))
BAD = ChangeSettings((("no_such_setting", 1),))


class World:
    """A metadata log that folds each arriving record. ``history_entries`` bounds the history of the state."""

    def __init__(self, history_entries: int = 10_000) -> None:
        self.draw = SeededDraw(b"world")
        self.state = EMPTY_STATE
        self.applied: list[Entry] = []
        self.direct(InitializeCluster("world", (("history_entries", history_entries),)))

    def uuid(self) -> str:
        """Return a new identifier."""
        return draw_uuid(self.draw)

    def request(
        self, command: Command = GOOD, request_id: str | None = None, since_epoch: int | None = None
    ) -> CommandRequest:
        """Return a request for the command with the current time."""
        kind, version, payload = encode_command(command)
        since = self.state.epoch if since_epoch is None else since_epoch
        return CommandRequest(request_id or self.uuid(), since, "tester", kind, version, payload)

    def entry(self, command: Command, request_id: str | None = None) -> EncodedEntry:
        """Return an entry that follows the head."""
        previous = self.state.state_id or None
        return author_entry(
            cluster_id=self.state.cluster_id or self.uuid(),
            state_id=new_state_id(previous, NOW, self.draw.take(8)),
            prev_state_id=previous,
            request_id=request_id or self.uuid(),
            since_epoch=self.state.epoch,
            submitter="somebody else",
            at=NOW,
            command=command,
        )

    def direct(self, command: Command | None = None) -> EncodedEntry:
        """Append an entry of another author before the validator's."""
        encoded = self.entry(command if command is not None else Noop())
        assert self.land(encoded) is OutcomeKind.APPLIED
        return encoded

    def take_over(self, term: int) -> None:
        """Take over as validator and append the Noop."""
        self.direct(TakeOver("validator", self.uuid(), term))
        self.direct()

    def land(self, encoded: EncodedEntry) -> OutcomeKind:
        """Append one record to the log."""
        entry = decode_entry(encoded.data)
        assert isinstance(entry, Entry)
        folded = fold(self.state, entry)
        self.state = folded.state
        if folded.outcome.kind is OutcomeKind.APPLIED:
            self.applied.append(entry)
        return folded.outcome.kind

    def land_all(self, chain: EntryChain) -> tuple[CommitOutcome, ...]:
        """Append the whole chain and return its outcomes."""
        for encoded in chain.entries:
            self.land(encoded)
        return commit_outcomes(self.state, chain)

    def epochs_of(self, request_id: str) -> list[int]:
        """Return the epochs that this request created."""
        return [number for number, entry in enumerate(self.applied, start=1) if entry.request_id == request_id]
