"""Authentication of requests: whether a request comes from a principal, with its present key.

The driver checks the codes when requests arrive, because it has the master (``wire.requests.verified``). The state says
whether a code is needed, and which key of a principal is valid. So the rest is decided on the state that the entry of
the request would follow, in the order of the log.

A cluster without principals accepts requests without a code. A cluster with principals never does, also if the
validator has no master.

Source: decision 187.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.principals import FOUNDING_KEY, principal_of
from ringlog.kernel.model.state import ClusterState
from ringlog.wire.records import CommandRequest
from ringlog.wire.requests import SignedRequest

NOT_AUTHENTICATED: Final = "not_authenticated"


def sender_of(state: ClusterState, request: CommandRequest) -> str | Rejected:
    """Return the principal that sent a request, or why it is refused.

    In a cluster without principals, only the founding key of a principal gives a name, and every other request has the
    empty name. Otherwise each holder of a key file that was made early could become the first admin. ``authorize`` then
    decides whether the name is an active principal with a sufficient role.
    """
    if not state.principals:
        if not isinstance(request, SignedRequest) or request.coded.key != FOUNDING_KEY:
            return ""
    elif not isinstance(request, SignedRequest):
        return Rejected(NOT_AUTHENTICATED, "the request has no code. Get a key from an admin: ringlog principal key")
    name, key = request.coded.principal, request.coded.key
    if request.unverified:
        return Rejected(NOT_AUTHENTICATED, f"request of {name[:100]}: {request.unverified}")
    if not state.principals:
        return name
    known = principal_of(state.principals, name)
    if known is not None and known.key != key:
        return Rejected(NOT_AUTHENTICATED, f"key {key} of {name} is not valid, key {known.key} is")
    return name
