"""Does this process have the state that the others have? Each snapshot is asked, and who stands alone is quarantined.

Two readers put the digest of a snapshot's state into the log (``ConfirmSnapshot``). Each process that folded the epoch
itself has that state at hand, compares in a thread of its own, and if its digest is another one, it looks whether the
topic of snapshots, which only agents may write, has that snapshot, with the word of another one who confirms it: the
log's word alone is anybody's. If so it has folded wrongly, one against two. Then its replica halts
(``state_disputed``): it serves, acknowledges, proposes and stores nothing any more, and says so as every halted process
does. An agent that has halted stays down; what is started again begins with what the others have. The state that was
wrong is kept as evidence, part by part, for who looks for the defect.

Invariants: nothing is compared that this process did not fold itself; nobody halts by a digest that no process which is
started now would begin with; the evidence is on the disk before the replica halts, and the first one stays until
somebody takes it away; states that wait are at most the marks that the state remembers, and share what they have in
common. Source: CEP-21; decision 106.
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


class Agreement:
    """Compares the states that ``replica`` folds. ``evidence``: the file for a state that is not the others'.
    ``snapshots``: opens the cluster's snapshots.
    """

    def __init__(
        self, replica: LogReplica, evidence: Callable[[ClusterState], Path], snapshots: Callable[[], SnapshotTopic]
    ) -> None:
        self._replica = replica
        self._snapshots = snapshots
        self._evidence = evidence
        self._marks: dict[Epoch, ClusterState] = {}
        self._due: list[tuple[ClusterState, str]] = []
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, _offset: int
    ) -> None:
        """A follower of the replica (``LogReplica.subscribe``): notes what is to be compared."""
        if after.snapshots is before.snapshots:
            return
        if is_mark(before, after):
            self._marks[after.epoch] = after
        said = [
            (self._marks.pop(one.epoch), one.digest) for one in confirmed_snapshots(after) if one.epoch in self._marks
        ]
        self._marks = {epoch: state for epoch, state in self._marks.items() if str(epoch) in after.snapshots}
        if said:
            with self._news:
                self._due += said
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._compare_all, name="agreement", daemon=True)
                    self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until everything that was noted is compared, for a test or an end."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _compare_all(self) -> None:
        while True:
            with self._news:
                if not self._due:
                    self._thread = None
                    return
                state, confirmed = self._due.pop(0)
            if (own := digest(state)) == confirmed:
                continue
            if why := self._unfounded(state, confirmed):
                log.error("digest_unfounded", epoch=state.epoch, own=own, confirmed=confirmed, why=why)
            else:
                self._quarantine(state, own, confirmed)

    def _unfounded(self, state: ClusterState, confirmed: str) -> str:
        """Why that digest is a word of the log alone; empty if it is not. Reads the snapshot, as who begins does."""
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
        return "no snapshot that two agents have has it"

    def _quarantine(self, state: ClusterState, own: str, confirmed: str) -> None:
        path = self._evidence(state)
        try:
            if not path.exists():
                write_private(path, _told(state, own, confirmed))
        except OSError as error:
            log.error("evidence_not_kept", file=str(path), why=str(error))
        self._replica.halt_on(
            StateDisputed(
                f"the digest of epoch {state.epoch} is {own} here, and two others have {confirmed}",
                f"the state is kept in {path}; start the process again: it begins with what the others have; if this "
                "comes back, memory fails, or you have met a defect: report it with that file",
            )
        )


def _told(state: ClusterState, own: str, confirmed: str) -> str:
    parts = {name: data.hex() for name, data in encoded_parts(state).items()}
    about = {"cluster_id": state.cluster_id, "epoch": state.epoch, "state_id": state.state_id}
    return json.dumps({**about, "digest": own, "confirmed": confirmed, "parts": parts}) + "\n"
