"""MACs of acknowledgements: a node's key is valid for its own acknowledgements only."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from ringlog.wire.acks import WRONG_CODE, has_valid_mac, key_of, load_with_mac, verified_ack, verified_load, with_mac
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CodedAck,
    CodedLoad,
    NodeAck,
    NodeLoad,
    decode_node_ack,
    decode_node_load,
    encode_coded_ack,
    encode_coded_load,
    encode_node_ack,
    encode_node_load,
    unwrap_ack,
    unwrap_load,
)
from tests.kernel.entries import uuid

MASTER, LATER = "a-master-of-many-letters", "another-of-many-letters"
ONE, OTHER = uuid(1, space=2), uuid(2, space=2)


def ack_of(node: str, epoch: int = 5) -> bytes:
    return encode_node_ack(NodeAck(uuid(9), node, "3@run", epoch, epoch, (), 0, 0))


def refused(data: bytes, masters: tuple[str, ...]) -> WireError:
    with pytest.raises(WireError) as error:
        verified_ack(data, masters)
    return error.value


def test_the_key_equals_the_documented_key() -> None:
    said = hmac.new(MASTER.encode(), f"ringlog acks of {ONE}".encode(), hashlib.sha256).hexdigest()
    assert key_of(MASTER, ONE) == said


def test_a_node_key_signs_its_own_acknowledgements_only() -> None:
    mine = with_mac(ack_of(ONE), key_of(MASTER, ONE))
    assert verified_ack(mine, (MASTER,)) == decode_node_ack(mine) == decode_node_ack(ack_of(ONE))
    for forged in (ack_of(OTHER), with_mac(ack_of(OTHER), key_of(MASTER, ONE)), with_mac(ack_of(OTHER), MASTER)):
        error = refused(forged, (MASTER,))
        assert (error.code, error.field) == (WRONG_CODE, OTHER)
        assert verified_ack(forged, ()).node == OTHER, "without a master key each acknowledgement counts"


def test_a_changed_byte_invalidates_the_code() -> None:
    mine = unwrap_ack(with_mac(ack_of(ONE), key_of(MASTER, ONE)))
    raised = ack_of(ONE, epoch=6)
    assert refused(encode_coded_ack(CodedAck(raised, mine.code)), (MASTER,)).code == WRONG_CODE
    for code in (b"", mine.code[:-1], mine.code + b"\0", bytes(32)):
        assert refused(encode_coded_ack(CodedAck(mine.ack, code)), (MASTER,)).code == WRONG_CODE


def test_keys_rotate_while_all_nodes_run() -> None:
    before, after = (with_mac(ack_of(ONE), key_of(master, ONE)) for master in (MASTER, LATER))
    for data in (before, after):
        assert verified_ack(data, (MASTER, LATER)).node == ONE
    assert refused(before, (LATER,)).code == WRONG_CODE
    assert has_valid_mac(before, (key_of(LATER, ONE), key_of(MASTER, ONE)))
    assert not has_valid_mac(before, (key_of(LATER, ONE),))


def test_a_code_does_not_make_other_bytes_an_acknowledgement() -> None:
    key = key_of(MASTER, ONE)
    for data in (b"", b"nothing", with_mac(b"nothing", key), with_mac(with_mac(ack_of(ONE), key), key)):
        assert refused(data, (MASTER,)).code != WRONG_CODE


def load_of(node: str) -> bytes:
    return encode_node_load(NodeLoad(node, 7, 1 << 40, ()))


def refused_load(data: bytes) -> WireError:
    with pytest.raises(WireError) as error:
        verified_load(data, (MASTER,))
    return error.value


def test_a_node_reports_load_for_itself_only() -> None:
    mine = load_with_mac(load_of(ONE), key_of(MASTER, ONE))
    assert verified_load(mine, (LATER, MASTER)) == decode_node_load(mine) == decode_node_load(load_of(ONE))
    code = unwrap_load(mine).code
    others = (
        load_of(OTHER),
        load_with_mac(load_of(OTHER), key_of(MASTER, ONE)),
        encode_coded_load(CodedLoad(load_of(OTHER), code)),
    )
    for forged in others:
        error = refused_load(forged)
        assert (error.code, error.field) == (WRONG_CODE, OTHER)
        assert verified_load(forged, ()).node == OTHER, "without a master key each report counts"


def test_codes_of_acknowledgements_and_reports_differ() -> None:
    key = key_of(MASTER, ONE)
    said = unwrap_ack(with_mac(ack_of(ONE), key))
    assert refused_load(encode_coded_load(CodedLoad(load_of(ONE), said.code))).code == WRONG_CODE
    for data in (b"", load_with_mac(said.ack, key), with_mac(load_of(ONE), key), with_mac(ack_of(ONE), key)):
        assert refused_load(data).code != WRONG_CODE
