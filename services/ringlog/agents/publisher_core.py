"""How the publisher resumes: the last record of ``epochs`` says up to where the change topics go, and of which log."""

from __future__ import annotations

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.state import ClusterState

ROLE = "publisher"


def ahead(published: EpochChange | None, state: ClusterState) -> str | None:
    """Why ``published`` cannot come from the log whose newest state is ``state``; None if nothing speaks against it."""
    if published is None:
        return None
    if published.cluster_id != state.cluster_id:
        return f"the change topics are of cluster {published.cluster_id}, the log is of {state.cluster_id}"
    if published.epoch > state.epoch:
        return f"the change topics are at epoch {published.epoch}, the log ends at {state.epoch}"
    return None


def starts_from(published: EpochChange | None, state: ClusterState) -> bool:
    """True if the next difference is taken from ``state``.

    Raises ValueError if ``state`` has the epoch that was published last, and is another state.
    """
    if published is None:
        return state.epoch == 0
    if state.epoch != published.epoch:
        return False
    if state.state_id != published.state_id:
        raise ValueError(
            f"epoch {state.epoch} was published as state {published.state_id}, the log has {state.state_id}"
        )
    return True
