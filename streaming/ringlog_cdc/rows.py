"""Spark columns: records of the mutations topic decoded, routed, and encoded as CDC rows or dead letters.

The shape of a row's way: decoded (Avro, in the JVM), ``facts`` (what a plan must know), routed (the verdicts, by an
Arrow function over the deciding columns only), addressed (topic, partition, key and value as they go out).
Cell values are opaque bytes throughout. The session runs with ``spark.sql.ansi.enabled=false``: a bigint is cast to
its 8 big-endian bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from ringlog.kernel.commands.schema import KEY_COLUMNS_MAX
from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX
from ringlog.wire.single_object import HEADER_BYTES, header
from ringlog_cdc.plan import OffsetRange, PartitionFacts
from ringlog_cdc.verdicts import CODES, NO_OPERATION, NUMBERS, OPERATION_CODES, REASONS, ROUTED
from ringlog_schemas import Schema, by_fingerprint, current

MUTATION = "ringlog.mutations.Mutation"
CDC_ROW = "ringlog.cdc.CdcRow"
DEAD_LETTER = "ringlog.cdc.DeadLetter"

VALUE_KEPT, KEY_KEPT = 3 * 1024 * 1024, 64 * 1024
"""Bytes of the original that a dead letter keeps. Brokers limit what a record has *compressed*, so the original may be
far larger than any record that the job may write: then it is cut, and the detail has its size and SHA-256."""

NAME_SHOWN = 100
"""Characters of a name in the detail of a dead letter: a hostile one may be as long as the record."""


class Expressions:
    """The columns of one cluster's job, built once: each costs many calls into the JVM, and none depends on a batch."""

    def __init__(self, cluster: str, source_topic: str, cluster_id: bytes) -> None:
        self._cluster = cluster
        self._source_topic = source_topic
        self._decoded = _decoded_columns()
        self._arguments = _argument_columns(cluster_id)
        self._outgoing: dict[tuple[str, int], Outgoing] = {}

    def decode(self, records: DataFrame) -> DataFrame:
        """Records of the Kafka source with their mutation: partition, offset, appended (microseconds), key, value,
        ``m``.

        ``m`` is read by the schema whose fingerprint the value carries, as today's schema has it; fields are null where
        the value is no mutation of a known schema.
        """
        return records.select(*self._decoded)

    def routed(self, decoded: DataFrame, function: Callable[..., Column]) -> DataFrame:
        """The decoded rows with ``r``, the answer of ``ringlog_cdc.routing.route``."""
        return decoded.select("*", function(*self._arguments).alias("r"))

    def records(self, rows: DataFrame, incarnation: str, row_bytes_max: int) -> DataFrame:
        """What goes out: topic, partition, key, value, the source position, and ``reason`` (number of the verdict).

        Rows whose table keeps no CDC log have no topic. ``incarnation`` is that of the plan part.
        """
        key = (incarnation, row_bytes_max)
        if key not in self._outgoing:
            self._outgoing = {key: _outgoing_columns(self._cluster, self._source_topic, *key)}
        columns = self._outgoing[key]
        return rows.select(*columns.encoded).select(*columns.judged).select(*columns.addressed)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The columns of three steps: rows encoded, judged by their size, addressed."""

    encoded: tuple[Column | str, ...]
    judged: tuple[Column | str, ...]
    addressed: tuple[Column | str, ...]


def _written() -> Column:
    """The header of the value, which names the schema that it was written by."""
    return F.substring("value", 1, HEADER_BYTES)


def _decoded_columns() -> tuple[Column | str, ...]:
    today = json.dumps(dict(current()[MUTATION].json))
    body = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    mutation = F.lit(None)
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == MUTATION:
            options = {"mode": "PERMISSIVE", "avroSchema": today}
            read = from_avro(body, json.dumps(dict(schema.json)), options)
            mutation = F.when(_written() == F.lit(header(fingerprint)), read).otherwise(mutation)
    return ("partition", "offset", F.unix_micros("timestamp").alias("appended"), "key", "value", mutation.alias("m"))


# ------------------------------------------------------------------------------------------------------ facts


def _uses(leeway: int) -> Column:
    """The greatest time that routing a row would use: its append time, and its timestamp if that is in the window."""
    timestamp = F.coalesce("m.timestamp", F.lit(0))
    in_window = timestamp <= F.col("appended") + F.lit(leeway)
    return F.greatest("appended", F.when(in_window, timestamp).otherwise(F.lit(0)))


def greatest_use(decoded: DataFrame, leeway: int) -> int:
    """The greatest time that routing all rows would use; 0 without rows. It fills the cache of the batch.

    Nothing in it changes from batch to batch, so Spark compiles it once.
    """
    row = decoded.select(_uses(leeway).alias("uses")).agg(F.max("uses").alias("used")).first()
    return int(row["used"] or 0) if row is not None else 0


def facts(decoded: DataFrame, positions: Mapping[int, int], horizon: int, leeway: int) -> list[PartitionFacts]:
    """What a plan must know of the rows from ``positions`` on, by source partition, where some may be held."""
    held = F.col("uses") >= F.lit(horizon)
    found = (
        decoded.where(_from(positions))
        .select("partition", "offset", _uses(leeway).alias("uses"))
        .groupBy("partition")
        .agg(
            F.min(F.when(held, F.col("offset"))).alias("held"),
            F.coalesce(F.max(F.when(~held, F.col("uses"))), F.lit(0)).alias("used"),
        )
        .collect()
    )
    return [PartitionFacts(row["partition"], row["held"], row["used"]) for row in found]


def _from(positions: Mapping[int, int]) -> Column:
    condition = F.lit(True)
    for partition, offset in sorted(positions.items()):
        condition = condition & ((F.col("partition") != F.lit(partition)) | (F.col("offset") >= F.lit(offset)))
    return condition


def within(ranges: Sequence[OffsetRange]) -> Column:
    """True for the rows of these ranges."""
    condition = F.lit(False)
    for item in ranges:
        offset = F.col("offset")
        inside = (offset >= F.lit(item.start)) & (offset < F.lit(item.end))
        condition = condition | ((F.col("partition") == F.lit(item.partition)) & inside)
    return condition


# ---------------------------------------------------------------------------------------------------- routing


def _operation_code() -> Column:
    code = F.lit(NO_OPERATION)
    for name, number in sorted(OPERATION_CODES.items()):
        code = F.when(F.col("m.operation") == name, F.lit(number)).otherwise(code)
    return F.when(_is_compound(), F.lit(NO_OPERATION)).otherwise(code)


def _is_compound() -> Column:
    """True if the mutation is more than one statement about plain cells."""
    lists = ("more", "deleted_elements", "replaced")
    return F.coalesce(F.greatest(*(F.size(f"m.{name}") for name in lists)) > 0, F.lit(False))


def _argument_columns(cluster_id: bytes) -> tuple[Column, ...]:
    """The arguments of the Arrow function, in its order, without nulls but in ``doubtful``."""
    one = F.element_at("m.partition_key", 1)
    # Several components: each with its length (2 bytes) before it and a zero byte after it.
    several = F.expr(
        "aggregate(m.partition_key, X'', (key, part) -> "
        "concat(key, substring(cast(length(part) as binary), 3, 2), part, X'00'))"
    )
    # With more components than a table can have the key is wrong anyway, and composing it takes their number squared.
    is_several = F.size("m.partition_key").between(2, KEY_COLUMNS_MAX)
    key = F.when(F.size("m.partition_key") == 1, one).when(is_several, several)
    return (
        F.col("m.keyspace").isNotNull(),
        F.when(F.col("m.keyspace").isNotNull() & _is_doubtful(), F.col("value")),
        F.coalesce(F.col("m.cluster_id") != F.lit(cluster_id), F.lit(False)),
        # A name that is no UTF-8 is no table's, and must not reach Python as text.
        F.coalesce(F.try_validate_utf8(F.concat(F.col("m.keyspace"), F.lit("."), F.col("m.table"))), F.lit("")),
        _operation_code(),
        F.coalesce("m.timestamp", F.lit(0)),
        F.col("appended"),
        F.coalesce(key, F.lit(b"")),
        _size("m.partition_key"),
        _has_null("m.partition_key"),
        _size("m.clustering_key"),
        _has_null("m.clustering_key") | _has_long("m.partition_key"),
        F.coalesce("m.mutation_id", F.lit(b"")),
        F.col("partition"),
        F.col("offset"),
    )


def _is_doubtful() -> Column:
    """True if what the JVM read gives other bytes again, or holds text that is no UTF-8 (it passes that on)."""
    differs = F.lit(True)
    for fingerprint, schema in sorted(by_fingerprint().items()):
        if schema.full_name == MUTATION:
            # As it was written: what a later schema added is not among the fields of an earlier one.
            fields = F.struct(*(F.col(f"m.{field['name']}") for field in schema.json["fields"]))
            same = F.col("value") == _single_object(fields, schema)
            differs = F.when(_written() == F.lit(header(fingerprint)), ~same).otherwise(differs)
    names = F.is_valid_utf8("m.keyspace") & F.is_valid_utf8("m.table")
    columns = F.forall("m.cells", lambda cell: F.is_valid_utf8(cell["column"]))
    return differs | ~names | ~columns


def _size(array: str) -> Column:
    return F.when(F.col(array).isNull(), F.lit(0)).otherwise(F.size(array))


def _has_long(array: str) -> Column:
    return F.coalesce(F.exists(array, lambda part: F.length(part) > COMPONENT_BYTES_MAX), F.lit(False))


def _has_null(array: str) -> Column:
    return F.coalesce(F.exists(array, lambda part: part.isNull()), F.lit(False))


# ---------------------------------------------------------------------------------------------------- records


def _outgoing_columns(cluster: str, source_topic: str, incarnation: str, row_bytes_max: int) -> Outgoing:
    is_routed = F.col("r.verdict") == ROUTED
    stream = F.concat(F.col("r.stream_high").cast("binary"), F.col("r.stream_low").cast("binary"))
    oversized = is_routed & (F.length("row") > F.lit(row_bytes_max))
    is_row, is_letter = F.col("reason") == ROUTED, F.col("reason") > ROUTED
    position = F.concat_ws("/", F.lit(source_topic), "partition", "offset")
    letter = _dead_letter(source_topic, incarnation, row_bytes_max)
    reason = F.when(oversized, F.lit(NUMBERS["oversized"])).otherwise(F.col("r.verdict"))
    return Outgoing(
        encoded=("*", stream.alias("stream"), F.when(is_routed, _cdc_row(stream, source_topic)).alias("row")),
        judged=("*", reason.alias("reason")),
        addressed=(
            F.when(is_row, F.lit(f"{cluster}.cdc")).when(is_letter, F.lit(f"{cluster}.dead-letters")).alias("topic"),
            F.when(is_row, F.col("r.cdc_partition")).otherwise(F.lit(0)).alias("partition"),
            F.when(is_row, F.col("stream")).otherwise(F.encode(position, "UTF-8")).alias("key"),
            F.when(is_row, F.col("row")).when(is_letter, letter).alias("value"),
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            "reason",
            F.col("r.generation").alias("generation"),
        ),
    )


def _single_object(fields: Column, schema: Schema) -> Column:
    return F.concat(F.lit(header(schema.fingerprint)), to_avro(fields, json.dumps(dict(schema.json))))


def _cdc_row(stream: Column, source_topic: str) -> Column:
    cells = F.col("m.cells")
    gone = F.filter(cells, lambda cell: cell["value"].isNull())
    fields = F.struct(
        stream.alias("stream_id"),
        F.col("r.generation").alias("generation"),
        F.concat(F.col("r.time_high").cast("binary"), F.col("r.time_low").cast("binary")).alias("time"),
        F.lit(0).alias("batch_seq_no"),
        _operation_code().alias("operation"),
        F.col("m.ttl").alias("ttl"),
        F.lit(True).alias("end_of_batch"),
        F.col("m.keyspace").alias("keyspace"),
        F.col("m.table").alias("table"),
        F.col("m.mutation_id").alias("mutation_id"),
        F.lit(source_topic).alias("source_topic"),
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.col("m.timestamp").alias("timestamp"),
        F.col("m.partition_key").alias("partition_key"),
        F.col("m.clustering_key").alias("clustering_key"),
        F.filter(cells, lambda cell: cell["value"].isNotNull()).alias("cells"),
        F.transform(gone, lambda cell: cell["column"]).alias("deleted"),
        F.col("m.deleted_elements").alias("deleted_elements"),
    )
    return _single_object(fields, current()[CDC_ROW])


def _dead_letter(source_topic: str, incarnation: str, row_bytes_max: int) -> Column:
    code, rule = F.lit(""), F.lit("")
    for number, (_, sentence) in enumerate(REASONS, start=1):
        matches = F.col("reason") == number
        code = F.when(matches, F.lit(CODES[number])).otherwise(code)
        rule = F.when(matches, F.lit(sentence)).otherwise(rule)
    found = F.when(
        F.col("reason") == NUMBERS["unreadable"], F.format_string("%d bytes", F.coalesce(F.length("value"), F.lit(0)))
    ).otherwise(
        F.format_string(
            f"%s.%s, %s, timestamp %d, appended at %d; epoch %d; rows have at most {row_bytes_max} bytes",
            F.substring("m.keyspace", 1, NAME_SHOWN),
            F.substring("m.table", 1, NAME_SHOWN),
            "m.operation",
            "m.timestamp",
            "appended",
            "r.epoch",
        )
    )
    fields = F.struct(
        code.alias("reason"),
        F.concat(rule, F.lit(" ("), found, _cut("key", KEY_KEPT), _cut("value", VALUE_KEPT), F.lit(")")).alias(
            "detail"
        ),
        F.lit(source_topic).alias("topic"),
        F.col("partition").alias("partition"),
        F.col("offset").alias("offset"),
        F.col("appended").alias("append_time"),
        F.substring("key", 1, KEY_KEPT).alias("key"),
        F.substring("value", 1, VALUE_KEPT).alias("value"),
        F.lit(incarnation).alias("writer"),
        F.col("r.epoch").alias("epoch"),
    )
    return _single_object(fields, current()[DEAD_LETTER])


def _cut(name: str, kept: int) -> Column:
    """What the detail says of a key or value that is longer than what is kept of it; else the empty text."""
    said = F.format_string(f"; first {kept} of %d bytes of the {name}, SHA-256 %s", F.length(name), F.sha2(name, 256))
    return F.coalesce(F.when(F.length(name) > kept, said), F.lit(""))
