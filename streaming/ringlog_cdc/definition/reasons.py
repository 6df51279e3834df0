"""The outcome of a record: rows, nothing, or a dead letter with one of these reasons.

A verdict is a number. Positive numbers are reasons, in order of precedence: if several apply, the first one counts.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final = -2
"""The row or letter is in its topic already (``ringlog_cdc.plan.recovered_rows``)."""
SKIPPED: Final = -1
"""Accepted, and nothing is logged: the table has no CDC log, or the write changes nothing."""
ROUTED: Final = 0
"""Accepted: the record becomes rows."""

REASONS: Final[tuple[tuple[str, str], ...]] = (
    ("unreadable", "the value is not a mutation in Avro single-object encoding of a known schema"),
    ("foreign_cluster", "the mutation belongs to another cluster"),
    ("verdict_forgotten", "the write was appended before the log's oldest table versions"),
    ("unknown_table", "the schema did not contain the table with this name and id"),
    ("unknown_version", "the table did not have this version at the epoch of the write"),
    ("unknown_operation", "this release does not support the operation"),
    ("null_partition_key", "a component of the partition key is null or missing"),
    (
        "bad_key",
        "the key has the wrong number of components, a null clustering component, or a component that is too long",
    ),
    ("bad_key_type", "a component of the key or of a bound does not have the type of its column"),
    (
        "wrong_record_key",
        "the key of the record is not that of the write: table name, zero byte, composed partition key",
    ),
    ("unknown_column", "the table does not have the column outside its key"),
    ("bad_value_type", "a value does not have the type of its column"),
    ("bad_change", "a statement of the write contradicts the table: its columns, its bounds or its collections"),
    ("timestamp_in_future", "the write timestamp is further ahead of the append time than the allowed lateness"),
    ("no_generation", "no CDC generation was active at the write timestamp"),
    ("timestamp_too_old", "the write timestamp is before the acceptance window"),
    ("generation_closed", "the generation of the write timestamp is sealed"),
    ("oversized", "the CDC row is larger than the limit"),
)
"""(code, rule) of each dead letter, in order of precedence. The number of a reason is its index plus one."""

NUMBERS: Final[dict[str, int]] = {code: number for number, (code, _) in enumerate(REASONS, start=1)}
"""Code to number."""
RULES: Final[dict[int, str]] = {number: rule for number, (_, rule) in enumerate(REASONS, start=1)}
"""Number to rule."""
CODES: Final[dict[int, str]] = {number: code for code, number in NUMBERS.items()}
"""Number to code."""
