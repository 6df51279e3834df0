"""Discovery of a fresh cluster: processes that know a few addresses each agree on the one that creates it.

Each process has a *view*. It contains the name of the cluster, the known addresses, and the processes whose views were
received. It also names the process that decided to create the cluster (the *founder*), and the cluster once it exists.
A process sends its view to every known address, and each receiver answers with its own. Both add the contents of the
other view to theirs. So the known addresses become the transitive closure of the seeds.

The first row that holds applies:

=================================  ====================================================================================
a process knows of                 it
=================================  ====================================================================================
a cluster                          joins the cluster
a founder                          waits for the cluster, or creates it if it is the founder
views from all known addresses     becomes the founder if its id is the lowest, else waits
none of these                      keeps asking
=================================  ====================================================================================

Two rules make this safe against loss, delay, repetition and crashes:

- **A view is on disk before it is sent**, in a question or in an answer.
- **The sender of a view knows the receiver.** A question is sent to a known address. An answer is sent after the
  question was merged, and counts only if its view contains the address of the asker.

Theorem: let the seeds of two processes lead, hop by hop, to a common process, which may be one of the two. Then at most
one of the two decides to create a cluster.

Proof: assume that *a* and *b* both decide. Each has the view of every process that its seeds lead to, so both have a
view of a common process *x*. Let *b* have the later one of these two views. It contains the address of *a*, because *x*
knew *a* when it sent the earlier one. So *b* has a view of *a*, which *a* sent when *a* knew *b*. If *a* had decided by
then, that view says so, and *b* waits. Otherwise *a* decides later, when it already knows *b*. Then *a* has a view of
*b*, by the same argument from before *b* decides. So each has seen the id of the other, and only one of the two ids is
the lowest. (``tests/protocol/test_discovery.py`` walks all states of three processes.)

Three cases cannot be excluded: processes that never exchange views, a process that lost its disk, and two copies of one
disk. In these cases the first initial entry of the log decides (``ringlog.client.creation.creation``). Discovery uses
no clock and never assumes that a process is dead. An address that never answers blocks discovery until an operator
creates the cluster.

Source: ScyllaDB, "Establishing group 0 in a fresh cluster"; decision 96.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ringlog.kernel.values import is_name, replace
from ringlog.wire.data import DiscoveryView, MetPeer

ADDRESSES_MAX: Final = 1_000
"""A view with more addresses is ignored as a whole, so a process never decides without some of them."""
TEXT_MAX: Final = 255


def initial_view(cluster: str, address: str, own_id: str, seeds: Iterable[str]) -> DiscoveryView:
    """Return the view of a process that has not received any view.

    Args:
        cluster: the name of the cluster; empty: the process learns it from others, and does not decide before.
        address: the address of the process, as others reach it.
    """
    return with_founder(DiscoveryView(cluster, address, own_id, tuple(sorted({address, *seeds}))))


def restored_view(kept: DiscoveryView, cluster: str, seeds: Iterable[str]) -> DiscoveryView:
    """Return the view of a restarted process: its stored view, with the arguments of this start."""
    addresses = tuple(sorted({*kept.known, *seeds}))
    return with_founder(replace(kept, cluster=kept.cluster or cluster, known=addresses))


def merge_view(view: DiscoveryView, other: DiscoveryView, asked_at: str = "") -> DiscoveryView | None:
    """Return the view after a question or an answer from another process; None: ignore the message and do not answer.

    Args:
        asked_at: for an answer, the address that was asked. The sender may have another name for itself.
    """
    addresses = {*view.known, *other.known, other.address, *filter(None, [asked_at])}
    texts = (*addresses, other.id, other.cluster, other.founder, other.cluster_id)
    if (
        names_differ(view, other)
        # The view is stored, so an impossible name would keep this process from each later start.
        or not (is_name(other.cluster or "none") and all(map(str.isprintable, texts)))
        or (asked_at and view.address not in other.known)
        or not (other.address and other.id)
        or len(addresses) > ADDRESSES_MAX
        or max(map(len, texts)) > TEXT_MAX
    ):
        return None
    met = {one.address: one.id for one in view.met} | {one: other.id for one in (other.address, asked_at) if one}
    merged = replace(
        view,
        cluster=view.cluster or other.cluster,
        known=tuple(sorted(addresses)),
        met=tuple(MetPeer(*one) for one in sorted(met.items())),
        founder=view.founder or other.founder,
        cluster_id=view.cluster_id or other.cluster_id,
    )
    return with_founder(merged)


def names_differ(view: DiscoveryView, other: DiscoveryView) -> bool:
    """Return whether two views are for clusters of different names."""
    return bool(view.cluster and other.cluster and view.cluster != other.cluster)


def with_founder(view: DiscoveryView) -> DiscoveryView:
    """Return the view, with this process as the founder if the last but one row of the module's table says so.

    A process that does not know the name of the cluster never becomes the founder.
    """
    if view.founder or view.cluster_id or not view.cluster or missing_views(view):
        return view
    is_lowest = all(view.id <= one.id for one in view.met)
    return replace(view, founder=view.id) if is_lowest else view


def with_cluster(view: DiscoveryView, cluster_id: str) -> DiscoveryView:
    """Return the view after the metadata log has shown the cluster."""
    return replace(view, cluster_id=cluster_id)


def must_create(view: DiscoveryView) -> bool:
    """Return whether this process must create the cluster."""
    return view.founder == view.id and not view.cluster_id


def other_addresses(view: DiscoveryView) -> tuple[str, ...]:
    """Return the addresses that the process asks, repeatedly, until a cluster exists."""
    return tuple(one for one in view.known if one != view.address)


def missing_views(view: DiscoveryView) -> tuple[str, ...]:
    """Return the known addresses whose views were not received."""
    met = {one.address for one in view.met}
    return tuple(one for one in other_addresses(view) if one not in met)
