"""The keys of the principals in a run, and a record of who signed which request.

The keys are production keys, so a planted bug in their derivation affects them, too. The record is independent of it:
a check compares it with the entries of the log.

Invariant: a request is recorded as signed by a principal only if the code was made with the key of that principal and
this cluster.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.principals import AGENT_NAMES, FIRST_KEY, Principal
from ringlog.kernel.model.state import ClusterState
from ringlog.wire.records import CodedRequest, CommandRequest, decode_plain_request, encode_coded_request
from ringlog.wire.requests import PrincipalKey, chosen_key, key_of_principal, verified, with_code

MASTER: Final = "the-master-of-the-simulated-cluster"
OTHER_CLUSTER: Final = "00000000-0000-7000-8000-00000000d1d1"
"""Another cluster with the same master."""
OWN, PREVIOUS, NEXT, UNSIGNED, FOREIGN, CLAIMED = "own", "previous", "next", "unsigned", "foreign", "claimed"
WAYS: Final = (PREVIOUS, NEXT, UNSIGNED, FOREIGN, CLAIMED)
"""Invalid codes: an earlier or later key, no code, a key of another cluster, the name of another principal."""
ADMIN_NAME, WRITER_NAME = "ops", "cdc"
"""The principals of the operator and the CDC writer. Those of nodes have their names."""
THIEF: Final = "p0"
"""The principal whose key makes the codes that claim another name."""

Signer = tuple[str, int]
"""A principal, and the number of its key."""


class KeyRing:
    """All keys of one cluster. ``signers``: request id and digest of a command to the principals that signed it."""

    def __init__(self, cluster_id: str) -> None:
        # A planted bug in the derivation would not change keys from an earlier run.
        key_of_principal.cache_clear()
        self.cluster_id = cluster_id
        self.signers: dict[tuple[str, str], set[Signer]] = {}

    def key(self, name: str, number: int) -> PrincipalKey:
        """Return a key of a principal."""
        return key_of_principal(MASTER, self.cluster_id, name, number)

    def sign(self, request: bytes, state: ClusterState, name: str) -> bytes:
        """Return the record of a request, signed as in production: the file of the principal has the next key, too."""
        known = state.principals.get(name)
        numbers = range(known.key, known.key + 2) if known else (FIRST_KEY,)
        key = chosen_key(state, [self.key(name, number) for number in numbers])
        assert key is not None, "the file has keys"
        return self._signed(request, key)

    def send_as(self, request: bytes, known: Principal, way: str) -> bytes:
        """Return the record of a request that claims to be of a principal, with the code of this way."""
        name, number = known.name, known.key
        if way in (OWN, PREVIOUS, NEXT):
            return self._signed(request, self.key(name, number + (way == NEXT) - (way == PREVIOUS)))
        self._record(request)
        if way == FOREIGN:
            return with_code(request, key_of_principal(MASTER, OTHER_CLUSTER, name, number), self.cluster_id)
        if way == CLAIMED:
            own = self.key("p1" if name == THIEF else THIEF, FIRST_KEY)
            return with_code(request, PrincipalKey(name, number, own.key), self.cluster_id)
        return request

    def exchange(self, coded: CodedRequest, request: bytes) -> bytes:
        """Return the record of another request, with the code of another sender."""
        self._record(request)
        return encode_coded_request(CodedRequest(request, coded.principal, coded.key, coded.code))

    def verified(self, requests: tuple[CommandRequest, ...]) -> tuple[CommandRequest, ...]:
        """Return the requests of a record as the validator receives them."""
        return tuple(verified(request, self.cluster_id, (MASTER,)) for request in requests)

    def _signed(self, request: bytes, key: PrincipalKey) -> bytes:
        self._record(request, (key.name, key.number))
        return with_code(request, key, self.cluster_id)

    def _record(self, data: bytes, *signer: Signer) -> None:
        request = decode_plain_request(data)
        digest = command_digest(request.kind, request.version, request.payload)
        self.signers.setdefault((request.request_id, digest), set()).update(signer)


def is_agent(name: str) -> bool:
    """Return True for the principal of an agent."""
    return name in AGENT_NAMES
