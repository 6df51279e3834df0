"""Discovery of a fresh cluster: who founds it, among processes that know a few addresses each.

Each has a *view*: the name of the cluster, the addresses that it has heard of, whom it has heard from itself, whether
somebody has decided to found, and the cluster once there is one. It sends its view to every address that it knows, and
is answered with the other's; both add what they hear to their own. So the addresses that are known become the
transitive closure of the seeds.

===================  =================================================================================================
there is a cluster   who hears of it joins it; nobody founds
somebody founds      all others wait for the cluster
all known were met   the lowest id founds; others wait
else                 it asks on
===================  =================================================================================================

Two rules make that safe, whatever is lost, late, repeated, or crashes:

- **A view is on the disk before it is sent**, as a question or as an answer.
- **Who sends a view to somebody knows him**: the sender of a question knows the address that it asks; an answer is
  given by one that has taken the question in, and counts only if its view has the asker's address.

Theorem: of two whose seeds lead, hop by hop, to a common process (which may be one of the two), at most one decides.
Proof: let both decide, *a* and *b*. All that their seeds lead to they have met, so both have heard from some *x*. One
of these two views is the later one of *x*, say that which *b* heard; it has the address of *a*. So *b* has met *a*, by
a view that *a* sent when it knew *b*. If *a* had decided by then, its view said so, and *b* waits. If not, *a* decides
later, when it knows *b*, and so has met it, by the same argument before *b* decides. Then each has seen the other's id,
and only one of them is the lowest. (``tests/protocol/test_discovery.py`` walks all states of three processes.)

What cannot be excluded are processes that never hear of each other, one that lost its disk, and one disk at two places:
the log's first founding entry decides there, as always (``ringlog.client.creation.creation``). No clock is looked at,
and nobody is taken for dead: an address that never answers keeps everybody waiting until an operator founds the cluster
himself.

Source: ScyllaDB, "Establishing group 0 in a fresh cluster"; decision 96.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ringlog.wire.data import DiscoveryView, MetPeer

ADDRESSES_MAX: Final = 1_000
"""Addresses; a view with more is not listened to, so nobody decides without them."""
TEXT_MAX: Final = 255


def beginning(cluster: str, address: str, own_id: str, seeds: Iterable[str]) -> DiscoveryView:
    """The view of a process that has heard from nobody. ``address``: its own, as others know it; ``cluster``: the name
    of what it looks for, empty: it learns that from others, and founds nothing before.
    """
    return decided(DiscoveryView(cluster, address, own_id, tuple(sorted({address, *seeds}))))


def continued(kept: DiscoveryView, cluster: str, seeds: Iterable[str]) -> DiscoveryView:
    """The view of a process that starts again, with what it is given this time."""
    addresses = tuple(sorted({*kept.known, *seeds}))
    return decided(replace(kept, cluster=kept.cluster or cluster, known=addresses))


def hears(view: DiscoveryView, other: DiscoveryView, asked_at: str = "") -> DiscoveryView | None:
    """The view after a question or an answer of another one; None: it is not listened to, and must not be answered.

    ``asked_at``: the address that this is the answer of, which may be another name of its own.
    """
    addresses = {*view.known, *other.known, other.address, *filter(None, [asked_at])}
    texts = (*addresses, other.id, other.cluster, other.founder, other.cluster_id)
    if (
        differ(view, other)
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
    return decided(merged)


def differ(view: DiscoveryView, other: DiscoveryView) -> bool:
    """Whether they look for clusters of different names."""
    return bool(view.cluster and other.cluster and view.cluster != other.cluster)


def decided(view: DiscoveryView) -> DiscoveryView:
    """The same; with the decision to found, if nobody else can."""
    if view.founder or view.cluster_id or not view.cluster or unmet(view):
        return view
    is_lowest = all(view.id <= one.id for one in view.met)
    return replace(view, founder=view.id) if is_lowest else view


def settled(view: DiscoveryView, cluster_id: str) -> DiscoveryView:
    """The view once its own log has shown the cluster, which is never another one than that."""
    return replace(view, cluster_id=cluster_id)


def founds(view: DiscoveryView) -> bool:
    """Whether it is this one that is to found."""
    return view.founder == view.id and not view.cluster_id


def others(view: DiscoveryView) -> tuple[str, ...]:
    """Whom it asks: again and again, until there is a cluster."""
    return tuple(one for one in view.known if one != view.address)


def unmet(view: DiscoveryView) -> tuple[str, ...]:
    """Addresses that it has heard of, and not from."""
    met = {one.address for one in view.met}
    return tuple(one for one in others(view) if one not in met)
