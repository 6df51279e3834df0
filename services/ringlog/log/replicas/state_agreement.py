"""Detection of a process whose state differs from the state of the other processes.

Two readers write the digest of a snapshot's state into the log (``ConfirmSnapshot``). Every process that folded that
epoch compares the confirmed digest with the digest of its own state, in a separate thread.

A digest in the log alone proves nothing: any process may have written it. So on a difference, the process also reads
the snapshot topic, which only agents may write. If the topic has that snapshot with the confirmation of another role,
this process folded incorrectly: one against two. Its replica then halts (``state_disputed``). A halted process does not
serve, acknowledge, propose or store. An agent that has halted stays down. After a restart, it begins with the confirmed
snapshot. The incorrect state is stored as evidence, section by section.

Invariants:

- Only states that this process folded itself are compared.

- A process halts only on the digest of a snapshot that a starting process would accept.

- The evidence is written before the replica halts. The first evidence file stays until an operator removes it.

- The number of waiting states is at most the number of marks in the state, and they share their common parts.

Source: CEP-21; decision 106.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ringlog.files import write_private
from ringlog.kernel.commands.cluster.snapshots import is_mark
from ringlog.kernel.encoding.encoder import digest, encoded_parts
from ringlog.kernel.history import confirmed_snapshots
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogError, StateDisputed
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.runtime.logs import get_logger

EVIDENCE: Final = "disputed.state"

log = get_logger(__name__)


class DigestComparison:
    """The comparison of ``replica``'s states with the confirmed digests.

    Args:
        evidence: Returns the file for a state that differs.
        snapshots: Opens the cluster's snapshot topic.
    """

    def __init__(
        self, replica: LogReplica, evidence: Callable[[ClusterState], Path], snapshots: Callable[[], SnapshotTopic]
    ) -> None:
        self._replica = replica
        self._snapshots = snapshots
        self._evidence = evidence
        self._marks: dict[Epoch, ClusterState] = {}
        self._pending: list[tuple[ClusterState, str]] = []
        self._pending_changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, _offset: int
    ) -> None:
        """Note states to compare. A follower of the replica (``LogReplica.subscribe``)."""
        if after.snapshots is before.snapshots:
            return
        if is_mark(before, after):
            self._marks[after.epoch] = after
        said = [
            (self._marks.pop(one.epoch), one.digest) for one in confirmed_snapshots(after) if one.epoch in self._marks
        ]
        self._marks = {epoch: state for epoch, state in self._marks.items() if str(epoch) in after.snapshots}
        if said:
            with self._pending_changed:
                self._pending += said
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._compare_all, name="agreement", daemon=True)
                    self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until all noted states are compared. For tests, and for the end of the process."""
        with self._pending_changed:  # `folded` starts the thread under this lock: a thread seen here can be joined
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _compare_all(self) -> None:
        while True:
            with self._pending_changed:
                if not self._pending:
                    self._thread = None
                    return
                state, confirmed = self._pending.pop(0)
            if (own := digest(state)) == confirmed:
                continue
            if why := self._unconfirmed_reason(state, confirmed):
                log.error("digest_unfounded", epoch=state.epoch, own=own, confirmed=confirmed, why=why)
            else:
                self._quarantine(state, own, confirmed)

    def _unconfirmed_reason(self, state: ClusterState, confirmed: str) -> str:
        """Return why the digest is not backed by a valid snapshot, empty if it is.

        Reads the snapshot in the same way as a starting replica.
        """
        try:
            snapshots = self._snapshots()
            try:
                for one in snapshots.newest():
                    if one.head.epoch == state.epoch and not one.code and one.head.digest == confirmed:
                        snapshots.state(one.head)
                        return ""
                    if one.head.epoch < state.epoch:
                        break
            finally:
                snapshots.close()
        except LogError as error:
            return f"{error.code}: {error.message}"
        return "no snapshot that two agents confirmed contains it"

    def _quarantine(self, state: ClusterState, own: str, confirmed: str) -> None:
        path = self._evidence(state)
        try:
            if not path.exists():
                write_private(path, _evidence_json(state, own, confirmed))
        except OSError as error:
            log.error("evidence_not_kept", file=str(path), why=str(error))
        self._replica.halt_on(
            StateDisputed(
                f"the digest of epoch {state.epoch} is {own} in this process, but {confirmed} in two others",
                (
                    f"start the process again: it loads the state of the others. The own state is stored in {path}. "
                    "If the error returns, check the memory of this machine, and report the defect with that file"
                ),
            )
        )


def _evidence_json(state: ClusterState, own: str, confirmed: str) -> str:
    parts = {name: data.hex() for name, data in encoded_parts(state).items()}
    about = {"cluster_id": state.cluster_id, "epoch": state.epoch, "state_id": state.state_id}
    return json.dumps({**about, "digest": own, "confirmed": confirmed, "parts": parts}) + "\n"
