"""The closed set of reasons for which a command is refused: a stable code and what it means, by family.

Codes are part of the interface: programs branch on them, so a released code keeps its meaning. Every ``Rejected``
carries one of these and a sentence of its own that names field and rule.
"""

from __future__ import annotations

from typing import Final

_PROTOCOL: Final = {
    "answer_forgotten": "So many requests were rejected that older answers are forgotten; ask under a new request id.",
    "bad_field": "A field breaks its own rule, whatever the state.",
    "bad_json": "The text is not a JSON command.",
    "broken_rule": "A rule of this release has a defect and failed: an author appends nothing, a reader halts.",
    "request_expired": "The request was made before the oldest epoch still remembered: a repetition could not be told.",
    "request_id_reused": "The request id belongs to another applied command.",
    "state_id_not_above": "The state id is not above the one that it follows.",
    "too_many": "There are as many of them as there may be; see docs/guide/growth.md.",
    "too_large": "What would follow is larger than its readers can carry.",
    "undecodable": "The payload of a known command could not be read.",
    "unknown_command": "This release does not know the command or its version.",
    "unknown_field": "The command has no such field.",
}

_CLUSTER: Final = {
    "already_founded": "The cluster exists; it can be founded only once.",
    "bad_setting": "The value lies outside the bounds of the setting.",
    "stale_term": "The term is not above the last one of the role.",
    "unknown_setting": "This release does not know the setting.",
}

_NODES: Final = {
    "different_rack": "A node is replaced only by one in the same datacenter and rack.",
    "duplicate_address": "Another node that has not left has this address.",
    "duplicate_id": "A node with this id exists or existed; ids are never reused.",
    "duplicate_name": "A node with this name exists or existed; names are never reused.",
    "duplicate_token": "The same token is asked for twice.",
    "token_owned": "A token belongs to another node.",
    "unknown_node": "No such node is registered.",
    "wrong_node_state": "The node's state does not allow it.",
}

_OPERATIONS: Final = {
    "awaits_decision": "Somebody has failed of it for good or too often: an operator decides how it goes on.",
    "gate_not_met": "Not every node that matters has acknowledged enough.",
    "generation_not_committed": "The CDC generation made for the operation is not committed.",
    "generation_not_published": "The CDC generation made for the operation is not published.",
    "operations_in_flight": "An operation in flight has a plan that this would break.",
    "past_point_of_no_return": "The operation can only go on: a new owner may already be read.",
    "plans_conflict": "With another operation in flight, ranges would not end as the strategy lays them out.",
    "range_locked": "A range that would change is locked by another operation.",
    "too_few_replicas": "Too few replicas of a range are alive to know every row of it.",
    "too_many_operations": "As many operations are in flight as may be.",
    "unknown_operation": "No such operation is known.",
    "waits_its_turn": "As many operations run as may at once, or one of a kind that comes first is waiting.",
    "wrong_stage": "The operation is not in the stage that this follows.",
}

_SCHEMA: Final = {
    "bad_key": "The key columns are missing, repeated, unknown or of a type that no key may have.",
    "column_exists": "The table has a column of this name already.",
    "field_exists": "The user type has a field of this name already.",
    "keyspace_exists": "A keyspace of this name exists.",
    "keyspace_not_empty": "The keyspace has tables or user types.",
    "replication_impossible": "There are not enough normal nodes, or not in the racks, for the replicas asked for.",
    "table_exists": "A table of this name exists.",
    "table_id_reused": "The table id belongs or belonged to a table; ids are never reused.",
    "type_exists": "A user type of this name exists.",
    "type_in_use": "A column or another type is of the user type; or a column of a key is, where it would change.",
    "unknown_keyspace": "No such keyspace.",
    "unknown_strategy": "This release does not know the replication strategy.",
    "unknown_table": "No such table.",
    "unknown_type": "No such column type, or one that this release does not support.",
}

_CDC: Final = {
    "digest_mismatch": "The digest is not that of the generation's data.",
    "earlier_generation_open": "An earlier generation is open; generations close in their order.",
    "generation_closed": "The generation is closed already.",
    "generation_exists": "A generation of this id is committed.",
    "generation_expired": "The generation has expired already.",
    "generation_forgotten": "The generation's streams have left the state already.",
    "generation_in_use": "A writer may have routed into the generation, or an operation in flight rests on it.",
    "generation_incomplete": "Parts of the generation's data are missing.",
    "generation_malformed": "The parts of the generation's data do not fit together.",
    "generation_not_closed": "The generation is open: CDC writers may still log into it.",
    "generation_not_expired": "The generation has not expired: rows of it are kept.",
    "generation_not_last": "Another generation follows; only the last one can be withdrawn.",
    "generation_operates": "The generation has begun, or begins within the minute; what is in use is not withdrawn.",
    "generation_outdated": "The token owners changed since the generation was described.",
    "generation_prepared": "Another generation is between its data and its publication.",
    "generation_published": "The generation is published already.",
    "horizon_below_floor": "The horizon is below the one found at registration.",
    "horizon_below_low_watermark": "The horizon is below what the writer has claimed to be durable.",
    "horizon_frozen": "The horizon may not rise now: a generation is waiting for its timestamp.",
    "horizon_not_lower": "The horizon is above the one that the writer has promised.",
    "horizon_too_far_ahead": "The horizon lies further ahead of the validator's clock than the settings allow.",
    "incarnation_reused": "The incarnation is registered already; every start of a writer needs a new one.",
    "low_watermark_went_back": "The low watermark may only rise.",
    "next_generation_not_committed": "The generation operates still: none follows it.",
    "no_writers": "No CDC writer is registered, so nobody has logged what lies in the generation.",
    "positions_went_back": "A position of a writer may only rise.",
    "retention_not_over": "Rows of the generation are kept beyond this time, or for ever.",
    "source_in_use": "Another CDC writer logs the source, or may do so, and is not fenced.",
    "stale_incarnation": "A later incarnation of the writer is registered, or this one was never.",
    "timestamp_too_far_ahead": "The timestamp lies further ahead of the validator's clock than the settings allow.",
    "timestamp_not_above_horizon": "A writer may already route writes at or above the timestamp.",
    "timestamp_not_above_previous": "The timestamp is not above the last generation's.",
    "unknown_generation": "No such generation.",
    "unknown_writer": "No such CDC writer is registered.",
    "writer_fenced": "The incarnation was fenced: it has lost its right to write, and promises nothing any more.",
    "writer_not_fenced": "The writer is alive: only the horizon of a fenced one can be lowered for it.",
    "writers_behind": "A registered writer is not done with the generation.",
}

CODES: Final[dict[str, str]] = {**_PROTOCOL, **_CLUSTER, **_NODES, **_OPERATIONS, **_SCHEMA, **_CDC}
"""Code to its meaning, one sentence each."""
