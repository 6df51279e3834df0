"""What becomes of a mutation: a CDC row, a dead letter with a reason, or nothing (its table keeps no CDC log).

Numbers stand for the codes within Spark; the codes are what the dead letters carry, stable for ever. When several
apply, the first of this order counts.
"""

from __future__ import annotations

KNOWN = -2
"""What goes out for it is there already: see ``recovery``."""
SKIPPED = -1
ROUTED = 0

REASONS: tuple[tuple[str, str], ...] = (
    ("unreadable", "the value is no mutation in Avro single-object encoding of a known schema"),
    ("foreign_cluster", "the mutation names another cluster"),
    ("verdict_forgotten", "the write was appended before the log remembers what counted for it"),
    ("unknown_table", "the schema had no such table, or none of the id that the write names"),
    ("unknown_version", "the table had no such version, or none by the epoch that the write names"),
    ("unknown_operation", "the operation is none that this release knows"),
    ("null_partition_key", "a component of the partition key is null or missing"),
    (
        "bad_key",
        "the key has another number of components than the table's, a null clustering component, or one too long",
    ),
    ("bad_key_type", "a component of the partition key is not of its column's type"),
    ("unknown_column", "the table has no such column outside its key"),
    ("bad_change", "a statement of the write contradicts the table: its columns, its bounds or its collections"),
    ("timestamp_in_future", "the write timestamp lies further ahead of the append time than the leeway"),
    ("timestamp_too_old", "the write timestamp lies before the acceptance window"),
    ("no_generation", "no CDC generation operated at the write timestamp"),
    ("generation_closed", "the generation that operated at the write timestamp takes no more rows"),
    ("oversized", "the CDC row is larger than the limit"),
)
"""(code, rule), in order of precedence; the number of a reason is its place here plus one."""

NUMBERS: dict[str, int] = {code: number for number, (code, _) in enumerate(REASONS, start=1)}
RULES: dict[int, str] = {number: rule for number, (_, rule) in enumerate(REASONS, start=1)}
CODES: dict[int, str] = {number: code for code, number in NUMBERS.items()}

OPERATION_CODES: dict[str, int] = {"INSERT": 2, "UPDATE": 1, "ROW_DELETE": 3, "PARTITION_DELETE": 4}
"""Operation of a mutation to the code in the CDC row."""

NO_OPERATION = 0
"""Stands for an operation that is not in ``OPERATION_CODES``; as a CDC code 0 is a preimage, which no mutation is.
A range delete is not there: it is two rows, see ``split``."""
PARTITION_DELETE = OPERATION_CODES["PARTITION_DELETE"]
