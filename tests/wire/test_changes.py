"""Change records travel by field names, whatever kind they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.changes import EPOCHS, HEAD, ChangeRecord, EpochChange
from ringlog.wire.changes import CHANGES, decode_change, encode_change, encode_change_record, mapper
from ringlog.wire.codec import encode
from ringlog.wire.errors import WireError
from ringlog_schemas import current
from tests.wire.strategies import records


def test_every_change_has_a_schema_and_every_schema_a_class():
    assert sorted(CHANGES) == sorted(name for name, schema in current().items() if schema.family == "changes")


@pytest.mark.parametrize("name", sorted(CHANGES))
@given(data=st.data())
def test_changes_come_back(name, data):
    value = mapper(name).from_record(data.draw(records(name)))
    assert isinstance(value, CHANGES[name])
    assert decode_change(encode_change(value)) == value


def test_a_record_is_topic_key_and_value():
    value = EpochChange(3, "c", "s", 17)
    assert encode_change_record(ChangeRecord(EPOCHS, HEAD, value)) == ("epochs", b"head", encode_change(value))
    assert encode_change_record(ChangeRecord("nodes", "ü", None)) == ("nodes", "ü".encode(), None)


def test_other_records_are_no_changes():
    status = {"role": "r", "instance": "i", "term": 1, "epoch": 2, "state": "active", "at": 3, "refused": [], "why": ""}
    with pytest.raises(WireError, match="wrong_record"):
        decode_change(encode("ringlog.agents.AgentStatus", status))
