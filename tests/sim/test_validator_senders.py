"""The validator answers only requests of authenticated principals that have the role their command needs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from ringlog.kernel.authorization import authorize
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.principals import ADMIN, APPLICATION, FOUNDING_KEY, OPERATOR
from ringlog.kernel.values import Command
from ringlog.protocol.validator.core import add_requests, begin_batch, settle_batch
from ringlog.protocol.validator.values import CommitChain, NoteApplied, Publish, Validator
from ringlog.wire.records import REJECTED, CommandRequest, Result, encode_request
from ringlog.wire.requests import decode_request, key_of_principal, verified, with_code
from ringlog_sim.mutants.plant import Mutant, planted
from tests.agents.world import BAD, GOOD, NOW, World
from tests.kernel.commands.test_principals import test_a_schema_batch_hides_no_command
from tests.wire.test_request_codes import FORGED as FORGED_RECORDS
from tests.wire.test_request_codes import test_a_code_is_valid_for_one_principal_key_cluster_and_request

MASTER = "a-master-of-many-letters"


class Cluster(World):
    """A cluster whose validator has the master."""

    def __init__(self) -> None:
        super().__init__()
        self.take_over(1)
        self.validator = Validator("v", 1)
        self.offset = 0
        self.now = NOW

    def sign(
        self, command: Command, name: str, key: int = 1, cluster: str = "", master: str = MASTER
    ) -> CommandRequest:
        """Return the request of a principal, as the validator receives it."""
        cluster = cluster or self.state.cluster_id
        return self.arrive(
            with_code(encode_request(self.request(command)), key_of_principal(master, cluster, name, key), cluster)
        )

    def arrive(self, data: bytes, *masters: str) -> CommandRequest:
        return verified(decode_request(data), self.state.cluster_id, masters or (MASTER,))

    def answer(self, *requests: CommandRequest) -> list[Result]:
        """Decide requests together, and return their answers in order."""
        offered = [(self.offset + number, (one,)) for number, one in enumerate(requests)]
        self.offset += len(requests)
        step = begin_batch(add_requests(self.validator, offered).validator, self.state, self.now, self.draw)
        for effect in step.effects:
            if isinstance(effect, CommitChain):
                step = settle_batch(step.validator, self.land_all(effect.chain))
        self.validator = step.validator
        found = [one for effect in step.effects if isinstance(effect, Publish | NoteApplied) for one in effect.results]
        return sorted(found, key=lambda one: [request.request_id for request in requests].index(one.request_id))

    def code(self, request: CommandRequest) -> str:
        (result,) = self.answer(request)
        return result.code or result.outcome

    @property
    def last(self) -> Entry:
        return self.applied[-1]


def cluster_of_three() -> Cluster:
    """Return a cluster with an admin, an operator and an application."""
    made = Cluster()
    assert made.code(made.sign(CreatePrincipal("root", ADMIN), "root", FOUNDING_KEY)) == "applied"
    for name, role in (("ops", OPERATOR), ("shop", APPLICATION)):
        assert made.code(made.sign(CreatePrincipal(name, role), "root")) == "applied"
    return made


@pytest.fixture
def cluster() -> Cluster:
    return cluster_of_three()


OTHER = "00000000-0000-7000-8000-00000000d1d1"


def test_an_entry_has_the_principal_as_its_submitter(cluster: Cluster) -> None:
    assert cluster.code(cluster.sign(GOOD, "ops")) == "applied"
    assert cluster.last.submitter == "ops"


def test_a_cluster_without_principals_accepts_requests_as_before() -> None:
    cluster = Cluster()
    assert cluster.code(cluster.request(GOOD)) == "applied"
    assert cluster.last.submitter == "tester"
    assert cluster.code(cluster.sign(GOOD, "anybody", master="wrong-master-of-letters")) == "applied"
    assert cluster.last.submitter == "tester"
    assert cluster.code(cluster.sign(GOOD, "ops")) == "applied"
    assert cluster.last.submitter == "ops"


def test_only_a_holder_of_the_master_creates_the_first_admin() -> None:
    cluster, first = Cluster(), CreatePrincipal("root", ADMIN)
    assert cluster.code(cluster.request(first)) == "not_authenticated"
    forged = cluster.sign(first, "root", FOUNDING_KEY, master="wrong-master-of-letters")
    assert cluster.code(forged) == "not_authenticated"
    assert cluster.code(cluster.sign(first, "thief", FOUNDING_KEY)) == "not_authenticated"
    assert cluster.code(cluster.sign(CreatePrincipal("root", OPERATOR), "root", FOUNDING_KEY)) == "admin_needed"
    assert cluster.code(cluster.sign(first, "root", FOUNDING_KEY)) == "applied"
    assert cluster.code(cluster.sign(CreatePrincipal("thief", ADMIN), "thief", FOUNDING_KEY)) == "not_authenticated"
    assert cluster.code(cluster.sign(Noop(), "root", FOUNDING_KEY)) == "not_authenticated"


@pytest.mark.parametrize("name", ["n1", "root", "coordinator"])
def test_a_key_that_was_made_early_creates_no_first_admin(name: str) -> None:
    """A node gets its key before the first admin exists."""
    cluster = Cluster()
    assert cluster.code(cluster.sign(CreatePrincipal(name, ADMIN), name)) == "not_authenticated"
    assert cluster.code(cluster.sign(GOOD, name)) == "applied"


FORGED: tuple[Callable[[Cluster], CommandRequest], ...] = (
    lambda cluster: cluster.request(Noop()),
    lambda cluster: cluster.sign(Noop(), "stranger"),
    lambda cluster: cluster.sign(Noop(), "ops", key=2),
    lambda cluster: cluster.sign(Noop(), "ops", master="wrong-master-of-letters"),
    lambda cluster: cluster.sign(Noop(), "ops", cluster=OTHER),
    lambda cluster: decode_request(
        with_code(
            encode_request(cluster.request(Noop())),
            key_of_principal(MASTER, cluster.state.cluster_id, "ops", 1),
            cluster.state.cluster_id,
        )
    ),
)
"""Requests without a valid code."""


@pytest.mark.parametrize("forge", FORGED)
def test_a_request_without_a_valid_code_is_refused(
    cluster: Cluster, forge: Callable[[Cluster], CommandRequest]
) -> None:
    epoch = cluster.state.epoch
    assert cluster.code(forge(cluster)) == "not_authenticated"
    assert cluster.state.epoch == epoch


def test_a_validator_without_a_master_refuses_requests_of_a_cluster_with_principals(cluster: Cluster) -> None:
    data = with_code(
        encode_request(cluster.request(Noop())),
        key_of_principal(MASTER, cluster.state.cluster_id, "ops", 1),
        cluster.state.cluster_id,
    )
    (result,) = cluster.answer(verified(decode_request(data), cluster.state.cluster_id, ()))
    assert (result.code, "no request.master" in result.detail) == ("not_authenticated", True)


def test_a_principal_sends_only_the_commands_of_its_roles(cluster: Cluster) -> None:
    forged = AdvanceOperation("join-1", "finished", ())
    (result,) = cluster.answer(cluster.sign(forged, "shop"))
    refusal = "AdvanceOperation: shop needs the role agent; the request says: shop"
    assert (result.code, result.detail) == ("not_authorized", refusal)
    for name in ("ops", "root"):
        assert cluster.code(cluster.sign(forged, name)) == "not_authorized"
    assert cluster.code(cluster.sign(GOOD, "shop")) == "not_authorized"
    assert cluster.code(cluster.sign(BAD, "ops")) == "unknown_setting"
    assert cluster.code(cluster.sign(GrantRole("ops", ADMIN), "ops")) == "not_authorized"


def test_a_revocation_takes_effect_with_its_epoch(cluster: Cluster) -> None:
    """Also for requests of the same batch: each is decided on the state after the requests before it."""
    results = cluster.answer(
        cluster.sign(GOOD, "ops"),
        cluster.sign(RevokeRole("ops", OPERATOR), "root"),
        cluster.sign(GOOD, "ops"),
        cluster.sign(RevokePrincipal("ops"), "root"),
        cluster.sign(Noop(), "ops"),
    )
    assert [one.code or one.outcome for one in results] == [
        *("applied", "applied", "not_authorized"),
        *("applied", "not_authenticated"),
    ]


def test_a_rotated_key_is_valid_from_its_epoch_on(cluster: Cluster) -> None:
    results = cluster.answer(
        cluster.sign(Noop(), "ops", key=2),
        cluster.sign(RotatePrincipalKey("ops", 2), "root"),
        cluster.sign(Noop(), "ops", key=1),
        cluster.sign(Noop(), "ops", key=2),
    )
    assert [one.code or one.outcome for one in results] == [
        *("not_authenticated", "applied"),
        *("not_authenticated", "applied"),
    ]


def test_a_repeated_request_gets_the_stored_answer(cluster: Cluster) -> None:
    request, refused = cluster.sign(GOOD, "ops"), cluster.sign(GOOD, "shop")
    assert (cluster.code(request), cluster.code(refused)) == ("applied", "not_authorized")
    cluster.code(cluster.sign(GrantRole("shop", OPERATOR), "root"))
    epoch = cluster.state.epoch
    assert (cluster.code(request), cluster.code(refused)) == ("applied", "not_authorized")
    assert cluster.state.epoch == epoch


def test_a_copy_of_a_request_with_another_command_is_refused(cluster: Cluster) -> None:
    """A thief reads a request in the topic, and sends its code with another command."""
    request = cluster.sign(Noop(), "root")
    stolen = cluster.request(CreatePrincipal("thief", ADMIN), request.request_id)
    assert cluster.code(stolen) == "not_authenticated"
    assert cluster.code(request) == "request_id_reused", "its sender learns that the id was used"


@pytest.mark.parametrize("seed", range(20))
def test_a_request_is_applied_exactly_if_its_sender_was_authorized_then(seed: int) -> None:
    """Random senders, keys and revocations, several in one batch. The states of the log decide afterwards."""
    cluster, draw = cluster_of_three(), random.Random(seed)
    states = {cluster.state.epoch: cluster.state}
    names, roles = ("root", "ops", "shop", "a", "b"), (ADMIN, OPERATOR, APPLICATION)
    seen: Counter[str] = Counter()
    for _ in range(25):
        asked, batch = {}, []
        for _ in range(draw.randint(1, 6)):
            name, role, sender = draw.choice(names), draw.choice(roles), draw.choice((*names, "root", "root"))
            command: Command = draw.choice(
                [
                    CreatePrincipal(name, role),
                    GrantRole(name, role),
                    RevokeRole(name, role),
                    RotatePrincipalKey(name, draw.randint(2, 3)),
                    *([RevokePrincipal(name)] if draw.random() < 0.2 else []),
                    *(GOOD, Noop(), AdvanceOperation("join-1", "finished", ())),
                ]
            )
            key, is_forged = draw.choice((1, 1, 1, 2, 3)), draw.random() < 0.1
            request = cluster.sign(command, sender, key, OTHER if is_forged else "")
            asked[request.request_id] = sender, key, is_forged, command
            batch.append(request)
        first = len(cluster.applied)
        results = cluster.answer(*batch)
        state = states[max(states)]
        for entry in cluster.applied[first:]:
            sender, key, is_forged, command = asked[entry.request_id]
            known = state.principals.get(sender)
            assert known is not None
            assert (is_forged, known.key, known.revoked, entry.submitter) == (False, key, None, sender)
            assert authorize(state, sender, command) is None
            state = fold(state, entry).state
            states[state.epoch] = state
        for result in results:
            sender, key, is_forged, command = asked[result.request_id]
            seen[result.code or result.outcome] += 1
            if result.outcome == REJECTED:
                then = states[result.epoch]
                known = then.principals.get(sender)
                refused = authorize(then, sender, command)
                if is_forged or known is None or known.revoked is not None or known.key != key:
                    assert result.code == "not_authenticated"
                elif refused is not None:
                    assert (result.code, result.detail.partition("; the request says: ")[0]) == (
                        refused.code,
                        refused.detail,
                    )
                else:
                    assert result.code not in ("not_authenticated", "not_authorized")
    assert {"applied", "not_authenticated", "not_authorized"} <= seen.keys()


PLANTED = [
    Mutant(
        "role_not_checked",
        "ringlog.protocol.validator.batch:BatchPlan._decide_command",
        "authorize(self.state, sender, command) or too_far_ahead(self.state, command, self.now)",
        "too_far_ahead(self.state, command, self.now)",
        "the validator does not check roles",
        1,
    ),
    Mutant(
        "statements_not_checked",
        "ringlog.kernel.plans:parts_of",
        "tuple(parts) or (command,)",
        "(command,)",
        "a schema batch hides a command that needs another role",
        1,
    ),
    Mutant(
        "revoked_key_accepted",
        "ringlog.protocol.validator.authentication:sender_of",
        "known.key != key",
        "known.key < key",
        "the validator accepts the keys before the present one",
        1,
    ),
    Mutant(
        "any_key_founds",
        "ringlog.protocol.validator.authentication:sender_of",
        "request.coded.key != FOUNDING_KEY",
        "request.coded.key < FOUNDING_KEY",
        "a holder of a key file can become the first admin",
        1,
    ),
    Mutant(
        "revoked_principal_accepted",
        "ringlog.kernel.authorization:_unauthorized",
        "known is None or known.revoked is not None",
        "known is None",
        "the validator authenticates a revoked principal",
        1,
    ),
    Mutant(
        "code_of_another_cluster_accepted",
        "ringlog.wire.requests:key_of_principal",
        'f"{_REQUESTS_OF}{cluster_id}/{name}/{number}"',
        'f"{_REQUESTS_OF}{name}/{number}"',
        "a principal has the same key in each cluster",
        1,
    ),
    Mutant(
        "unverified_code_accepted",
        "ringlog.protocol.validator.authentication:sender_of",
        "if request.unverified:\n"
        '    return Rejected(NOT_AUTHENTICATED, f"request of {name[:100]}: {request.unverified}")',
        "pass",
        "the validator does not check the code",
        1,
    ),
    Mutant(
        "open_without_a_master",
        "ringlog.wire.requests:verified",
        "_NO_VALID_CODE if masters else _NO_MASTER",
        '_NO_VALID_CODE if masters else ""',
        "a validator without a master accepts each code",
        1,
    ),
]
"""Bugs that ``_exercise`` finds."""


def _exercise() -> None:
    """Run the tests of this module, without fixtures and parameters of pytest."""
    key_of_principal.cache_clear()
    test_a_principal_sends_only_the_commands_of_its_roles(cluster_of_three())
    test_a_revocation_takes_effect_with_its_epoch(cluster_of_three())
    test_a_rotated_key_is_valid_from_its_epoch_on(cluster_of_three())
    test_a_validator_without_a_master_refuses_requests_of_a_cluster_with_principals(cluster_of_three())
    for forged in FORGED_RECORDS:
        test_a_code_is_valid_for_one_principal_key_cluster_and_request(forged)
    for forge in FORGED:
        test_a_request_without_a_valid_code_is_refused(cluster_of_three(), forge)
    test_a_schema_batch_hides_no_command()
    test_a_key_that_was_made_early_creates_no_first_admin("n1")


@pytest.mark.parametrize("mutant", PLANTED, ids=[mutant.name for mutant in PLANTED])
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    _exercise()
    with planted(mutant), pytest.raises(AssertionError):
        _exercise()
    key_of_principal.cache_clear()
