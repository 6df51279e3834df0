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
from ringlog.wire.records import RANGE_DELETE
from ringlog.wire.single_object import HEADER_BYTES, header
from ringlog_cdc.decisions import Form
from ringlog_cdc.plan import OffsetRange, PartitionFacts
from ringlog_cdc.verdicts import CODES, NO_OPERATION, NUMBERS, OPERATION_CODES, REASONS, ROUTED
from ringlog_schemas import Schema, by_fingerprint, current, frozen

MUTATION = "ringlog.mutations.Mutation"
CDC_ROW = "ringlog.cdc.CdcRow"
DEAD_LETTER = "ringlog.cdc.DeadLetter"

VALUE_KEPT, KEY_KEPT = 3 * 1024 * 1024, 64 * 1024
"""Bytes of the original that a dead letter keeps. Brokers limit what a record has *compressed*, so the original may be
far larger than any record that the job may write: then it is cut, and the detail has its size and SHA-256."""

NAME_SHOWN = 100
"""Characters of a name in the detail of a dead letter: a hostile one may be as long as the record."""


@dataclass(frozen=True, slots=True)
class Made:
    """How the rows of a plan part are made. ``wide``: there may be compound writes, whose rows come from Python."""

    form: Form
    wide: bool


class Expressions:
    """The columns of one cluster's job, built once: each costs many calls into the JVM, and few depend on a batch."""

    def __init__(self, cluster: str, source_topic: str, cluster_id: bytes) -> None:
        self._cluster = cluster
        self._source_topic = source_topic
        self._cluster_id = cluster_id
        self._decoded = _decoded_columns()
        self._arguments: dict[Made, tuple[Column, ...]] = {}
        self._outgoing: dict[tuple[str, Made], Outgoing] = {}

    def decode(self, records: DataFrame) -> DataFrame:
        """Records of the Kafka source with their mutation: partition, offset, appended (microseconds), key, value,
        ``m``, ``compound``.

        ``m`` is read by the schema whose fingerprint the value carries, as today's schema has it; fields are null where
        the value is no mutation of a known schema. ``compound``: the write is more than one row of plain cells,
        whatever its table is like.
        """
        return records.select(*self._decoded).select("*", _is_compound().alias("compound"))

    def routed(self, decoded: DataFrame, function: Callable[..., Column], made: Made) -> DataFrame:
        """The decoded rows with ``r``, the answer of ``ringlog_cdc.arrow.routing_function``."""
        if made not in self._arguments:
            self._arguments = {made: _argument_columns(self._cluster_id, made.form)}
        return decoded.select("*", function(*self._arguments[made]).alias("r"))

    def records(self, rows: DataFrame, incarnation: str, made: Made) -> DataFrame:
        """What goes out: topic, partition, key, value, the source position, ``sequence`` among the rows of one write,
        and ``reason`` (number of the verdict).

        Rows whose table keeps no CDC log have no topic. ``incarnation`` is that of the plan part.
        """
        key = (incarnation, made)
        if key not in self._outgoing:
            self._outgoing = {key: _outgoing_columns(self._cluster, self._source_topic, *key)}
        columns = self._outgoing[key]
        found = rows.select(*columns.encoded).select(*columns.judged)
        return (found.select(*columns.exploded) if made.wide else found).select(*columns.addressed)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The columns of the steps: rows encoded, judged by their size, one for each row of a write, addressed."""

    encoded: tuple[Column | str, ...]
    judged: tuple[Column | str, ...]
    exploded: tuple[Column | str, ...]
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
    """The greatest time that routing a row would use: its append time, and its timestamps if they are in the window.

    A write with a timestamp beyond the window is refused under every set of generations, whatever the others are.
    """
    latest = F.array_max(F.transform("m.more", lambda change: change["timestamp"]))
    timestamp = F.coalesce(F.greatest("m.timestamp", latest), F.lit(0))
    in_window = timestamp <= F.col("appended") + F.lit(leeway)
    return F.greatest("appended", F.when(in_window, timestamp).otherwise(F.lit(0)))


def survey(decoded: DataFrame, leeway: int) -> tuple[int, bool]:
    """(the greatest time that routing all rows would use, 0 without rows; whether one is a compound write).

    It fills the cache of the batch. Nothing in it changes from batch to batch, so Spark compiles it once.
    """
    columns = (F.max("uses").alias("used"), F.max("compound").alias("compound"))
    row = decoded.select(_uses(leeway).alias("uses"), "compound").agg(*columns).first()
    return (int(row["used"] or 0), bool(row["compound"])) if row is not None else (0, False)


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
    return code


def _is_upsert() -> Column:
    return F.col("m.operation").isin("INSERT", "UPDATE")


def _is_compound() -> Column:
    """True if a mutation is compound whatever its table is like: ``statements.is_compound`` in columns."""
    lists = ("more", "deleted_elements", "replaced")
    listed = F.greatest(*(F.size(f"m.{name}") for name in lists)) > 0
    has_null = F.exists("m.cells", lambda cell: cell["value"].isNull())
    expires = _is_upsert() & F.col("m.ttl").isNotNull() & ((F.col("m.ttl") == 0) | has_null)
    is_range = (F.col("m.operation") == RANGE_DELETE) | F.col("m.bounds").isNotNull()
    return F.coalesce(listed | is_range | expires, F.lit(False))


def _name() -> Column:
    return F.concat(F.col("m.keyspace"), F.lit("."), F.col("m.table"))


def _argument_columns(cluster_id: bytes, form: Form) -> tuple[Column, ...]:
    """The arguments of the Arrow function, in its order, without nulls but in ``doubtful`` and ``compound``."""
    readable, compound = F.col("m.keyspace").isNotNull(), F.col("compound")
    if form.first:
        # A write by a later schema was unreadable then, and no write had several rows.
        readable, compound = readable & _written().isin(*_first_headers()), F.lit(False)
    elif form.special:
        compound = compound | (_is_upsert() & _name().isin(*form.special))
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
        readable,
        F.when(readable & _is_doubtful(), F.col("value")),
        F.coalesce(F.col("m.cluster_id") != F.lit(cluster_id), F.lit(False)),
        # A name that is no UTF-8 is no table's, and must not reach Python as text.
        F.coalesce(F.try_validate_utf8(_name()), F.lit("")),
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
        F.when(readable & compound, F.col("value")),
    )


def _first_headers() -> list[Column]:
    """The headers of mutations by schemas that the first release knew."""
    return [F.lit(header(schema.fingerprint)) for name, schema in frozen(1).items() if name == MUTATION]


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


def _outgoing_columns(cluster: str, source_topic: str, incarnation: str, made: Made) -> Outgoing:
    limit = made.form.row_bytes_max
    is_routed = F.col("r.verdict") == ROUTED
    is_plain = is_routed & F.col("r.rows").isNull() if made.wide else is_routed
    stream = F.concat(F.col("r.stream_high").cast("binary"), F.col("r.stream_low").cast("binary"))
    oversized = is_plain & (F.length("row") > F.lit(limit))
    is_row, is_letter = F.col("reason") == ROUTED, F.col("reason") > ROUTED
    position = F.concat_ws("/", F.lit(source_topic), "partition", "offset")
    letter = _dead_letter(source_topic, incarnation, limit)
    reason = F.when(oversized, F.lit(NUMBERS["oversized"])).otherwise(F.col("r.verdict"))
    row = _cdc_row(stream, source_topic, made.form)
    plain = _placed(F.col("r.cdc_partition"), F.col("stream"), F.col("row"), F.col("r.generation"))
    # One for a plain write and for the dead letter of any write; as many as its rows for a compound one.
    each = F.when(is_row & F.col("r.rows").isNotNull(), _pieces()).otherwise(F.array(plain)) if made.wide else None
    out, sequence = (F.col("out"), F.col("sequence")) if made.wide else (plain, F.lit(0))
    return Outgoing(
        encoded=("*", stream.alias("stream"), F.when(is_plain, row).alias("row")),
        judged=("*", reason.alias("reason")),
        exploded=("*", F.posexplode(each).alias("sequence", "out")) if each is not None else ("*",),
        addressed=(
            F.when(is_row, F.lit(f"{cluster}.cdc")).when(is_letter, F.lit(f"{cluster}.dead-letters")).alias("topic"),
            F.when(is_row, out["partition"]).otherwise(F.lit(0)).alias("partition"),
            F.when(is_row, out["stream"]).otherwise(F.encode(position, "UTF-8")).alias("key"),
            F.when(is_row, out["row"]).when(is_letter, letter).alias("value"),
            F.col("partition").alias("source_partition"),
            F.col("offset").alias("source_offset"),
            sequence.alias("sequence"),
            "reason",
            out["generation"].alias("generation"),
        ),
    )


def _pieces() -> Column:
    """The rows of a compound write that came from Python."""
    names = ("partitions", "streams", "rows", "generations")
    last = F.size("r.rows") - 1
    return F.transform(F.sequence(F.lit(0), last), lambda at: _placed(*(F.col(f"r.{name}")[at] for name in names)))


def _placed(partition: Column, stream: Column, row: Column, generation: Column) -> Column:
    """A row of the log and where it goes."""
    return F.struct(
        partition.alias("partition"), stream.alias("stream"), row.alias("row"), generation.alias("generation")
    )


def _single_object(fields: Column, schema: Schema) -> Column:
    return F.concat(F.lit(header(schema.fingerprint)), to_avro(fields, json.dumps(dict(schema.json))))


def _cdc_row(stream: Column, source_topic: str, form: Form) -> Column:
    cells = F.col("m.cells")
    if form.keys_only:
        cells = F.when(_name().isin(*form.keys_only), F.filter(cells, lambda _: F.lit(False))).otherwise(cells)
    gone = F.filter(cells, lambda cell: cell["value"].isNull())
    fields = [
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
    ]
    if form.first:
        return _single_object(F.struct(*fields), frozen(1)[CDC_ROW])
    return _single_object(F.struct(*fields, F.col("m.deleted_elements").alias("deleted_elements")), current()[CDC_ROW])


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
