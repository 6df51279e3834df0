"""MACs of requests: a principal's key is valid for its own requests to its own cluster only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import pytest
from immutables import Map

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.principals import Principal
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import replace
from ringlog.wire.commands import encode_command
from ringlog.wire.errors import WireError
from ringlog.wire.records import CodedRequest, CommandRequest, encode_coded_request, encode_request
from ringlog.wire.requests import (
    PrincipalKey,
    SignedRequest,
    chosen_key,
    decode_request,
    decode_requests,
    encode_request_batch,
    key_of_principal,
    principal_key,
    verified,
    with_code,
)
from ringlog.wire.senders import EntrySender, parsed_sender
from tests.kernel.entries import CLUSTER, uuid

MASTER, LATER = "a-master-of-many-letters", "another-of-many-letters"
KEY = key_of_principal(MASTER, CLUSTER, "ops", 1)
REQUEST = CommandRequest(uuid(1), 7, "cli", *encode_command(Noop()))
PLAIN = encode_request(REQUEST)
MINE = with_code(PLAIN, KEY, CLUSTER)


def coded(data: bytes) -> CodedRequest:
    request = decode_request(data)
    assert isinstance(request, SignedRequest)
    return request.coded


def sender(data: bytes, cluster: str = CLUSTER, masters: tuple[str, ...] = (MASTER,)) -> str:
    """Return the submitter if the MAC is valid; empty if it is not."""
    found = verified(decode_request(data), cluster, masters)
    return found.submitter if isinstance(found, SignedRequest) and not found.unverified else ""


def test_key_and_code_equal_the_documented_ones() -> None:
    key = hmac.new(MASTER.encode(), f"ringlog requests of {CLUSTER}/ops/1".encode(), hashlib.sha256).hexdigest()
    assert PrincipalKey("ops", 1, key) == KEY
    assert coded(MINE) == CodedRequest(
        PLAIN, "ops", 1, hmac.new(key.encode(), CLUSTER.encode() + PLAIN, hashlib.sha256).digest()
    )


def test_the_claims_of_a_sender_stay_with_the_verified_name() -> None:
    """A sender can claim a machine, a program and a person, and not another principal."""
    claimed = replace(REQUEST, submitter="ann host=ws7 client=go/1 on_behalf=Bob host=other")
    found = verified(decode_request(with_code(encode_request(claimed), KEY, CLUSTER)), CLUSTER, (MASTER,))
    assert found.submitter == "ops host=ws7 client=go/1 on_behalf=Bob host=other"
    assert parsed_sender(found.submitter) == EntrySender("ops", "ws7", "go/1", "Bob host=other")
    changed = encode_request(replace(claimed, submitter="ann host=ws8 client=go/1 on_behalf=Bob host=other"))
    assert sender(encode_coded_request(replace(coded(MINE), request=changed))) == "", "the MAC covers the claims"


def test_a_valid_code_makes_the_principal_the_submitter() -> None:
    found = verified(decode_request(MINE), CLUSTER, (LATER, MASTER))
    assert isinstance(found, SignedRequest)
    assert (found.submitter, found.unverified, found.request_id) == ("ops", "", REQUEST.request_id)
    assert verified(REQUEST, CLUSTER, (MASTER,)) is REQUEST


FORGED: tuple[Callable[[], bytes], ...] = (
    lambda: with_code(PLAIN, key_of_principal(LATER, CLUSTER, "ops", 1), CLUSTER),
    lambda: with_code(PLAIN, key_of_principal(MASTER, uuid(3), "ops", 1), CLUSTER),
    lambda: with_code(PLAIN, KEY, uuid(3)),
    lambda: with_code(PLAIN, key_of_principal(MASTER, uuid(3), "ops", 1), uuid(3)),
    lambda: with_code(PLAIN, replace(KEY, name="root"), CLUSTER),
    lambda: with_code(PLAIN, replace(KEY, number=2), CLUSTER),
    lambda: with_code(PLAIN, PrincipalKey("ops", 1, MASTER), CLUSTER),
    lambda: encode_coded_request(replace(coded(MINE), request=encode_request(replace(REQUEST, since_epoch=8)))),
    lambda: encode_coded_request(replace(coded(MINE), request=encode_request(replace(REQUEST, request_id=uuid(2))))),
    lambda: encode_coded_request(replace(coded(MINE), code=b"")),
    lambda: encode_coded_request(replace(coded(MINE), code=coded(MINE).code[:-1])),
    lambda: encode_coded_request(replace(coded(MINE), principal="o" * 101)),
    lambda: encode_coded_request(replace(coded(MINE), principal="")),
    lambda: encode_coded_request(replace(coded(MINE), key=-(2**63))),
)
"""Records without a valid code of this principal, key, cluster and request."""


@pytest.mark.parametrize("forged", FORGED)
def test_a_code_is_valid_for_one_principal_key_cluster_and_request(forged: Callable[[], bytes]) -> None:
    assert sender(MINE) == "ops"
    assert sender(forged()) == ""


def test_a_request_is_not_verified_until_its_code_was_checked() -> None:
    found = decode_request(MINE)
    assert isinstance(found, SignedRequest)
    assert (found.submitter, found.unverified) == ("cli", "the code was not checked")
    assert sender(MINE, masters=()) == ""
    assert sender(MINE, cluster=uuid(3)) == ""


def test_masters_rotate_while_clients_run() -> None:
    later = with_code(PLAIN, key_of_principal(LATER, CLUSTER, "ops", 1), CLUSTER)
    for data in (MINE, later):
        assert sender(data, masters=(LATER, MASTER)) == "ops"
    assert (sender(MINE, masters=(LATER,)), sender(later, masters=(LATER,))) == ("", "ops")


def test_requests_with_and_without_a_code_share_a_record() -> None:
    found = decode_requests(encode_request_batch([PLAIN, MINE, b"junk"]))
    assert found == (REQUEST, decode_request(MINE), None)
    assert decode_requests(MINE) == (decode_request(MINE),)


def test_a_code_does_not_make_other_bytes_a_request() -> None:
    for data in (b"", b"junk", MINE, encode_request_batch([PLAIN])):
        with pytest.raises(WireError):
            decode_requests(with_code(data, KEY, CLUSTER))


def test_a_line_of_a_key_file_has_name_number_and_key() -> None:
    assert principal_key(str(KEY)) == KEY
    assert KEY.key not in repr(KEY)
    for wrong in (
        "",
        "ops",
        "ops/1",
        f"ops/x/{KEY.key}",
        f"/1/{KEY.key}",
        f"o/p/1/{KEY.key}",
        f"ops/{'9' * 19}/{KEY.key}",
    ):
        assert principal_key(wrong) is None, wrong


def test_a_client_signs_with_the_key_that_is_valid_now() -> None:
    following = key_of_principal(MASTER, CLUSTER, "ops", 2)
    for number, expected in ((1, KEY), (2, following), (3, KEY)):
        state = replace(EMPTY_STATE, principals=Map({"ops": Principal("ops", (), number, 1)}))
        assert chosen_key(state, (KEY, following)) == expected
    assert chosen_key(EMPTY_STATE, (following, KEY)) == following
    assert chosen_key(EMPTY_STATE, ()) is None
