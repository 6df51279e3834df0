"""Submit one command over Kafka and wait for the answer, without Ringlog.

    python submit.py CLIENT.PROPERTIES CLUSTER KIND FIELDS [REQUEST_ID SINCE_EPOCH METADATA_OFFSET]

Example fields: '{"name": "orders", "replication": {"strategy": "simple", "factor": 3}}'. CLIENT.PROPERTIES holds
options of librdkafka, bootstrap.servers among them. The last three arguments continue an earlier request, after a crash
or a timeout: the program prints them before it sends.

Needs confluent-kafka and fastavro.
"""

import hashlib
import io
import json
import sys
import time
import uuid
from pathlib import Path

import confluent_kafka as kafka
import fastavro

RESEND_S, ANSWER_S = (1, 2, 4, 8, 15), 60


def is_end(message):
    """Return whether a message only reports the end of the topic."""
    return message.error() is not None and message.error().code() == kafka.KafkaError._PARTITION_EOF


class Topic:
    """A reader of partition 0 of a topic. It begins at ``offset``, or at the present end."""

    def __init__(self, config, name, offset=None):
        options = {"group.id": "ringlog-example", "isolation.level": "read_committed", "enable.auto.commit": False}
        options |= {"auto.offset.reset": "error", "enable.partition.eof": True}
        self.consumer, self.place = kafka.Consumer({**config, **options}), kafka.TopicPartition(name, 0)
        first, self.next = self.consumer.get_watermark_offsets(self.place, timeout=10)
        if offset is not None:
            self.next = max(first, offset)
        self.consumer.assign([kafka.TopicPartition(name, 0, self.next)])

    def new(self, wait_s):
        """Return new records as (key, value). Wait for one, or for the end of the topic if there are some."""
        found, deadline = [], time.monotonic() + wait_s
        while not found or time.monotonic() < deadline:
            message = self.consumer.poll(max(deadline - time.monotonic(), 0.0))
            if message is None or is_end(message):
                if found or time.monotonic() >= deadline:
                    break
            else:
                found.append(self.taken(message))
        return found

    def to_end(self):
        """Return all records before the end that the topic has now. For topics without transactions."""
        found, end = [], self.consumer.get_watermark_offsets(self.place, timeout=10)[1]
        while self.next < end:
            message = self.consumer.poll(1.0)
            if message is not None and not is_end(message):
                found.append(self.taken(message))
        return found

    def taken(self, message):
        """Return key and value of a message, and move behind it."""
        if message.error():
            raise kafka.KafkaException(message.error())
        self.next = message.offset() + 1
        return message.key(), message.value()


class Schemas:
    """The schemas of a cluster by fingerprint, and the commands by kind and version."""

    def __init__(self, config, cluster):
        self.by_key, self.commands, self.requests = {}, {}, None
        for key, value in Topic(config, f"{cluster}.schemas", 0).new(10):
            schema = json.loads(value)
            self.by_key[key.decode()] = parsed = fastavro.parse_schema(schema)
            if schema["namespace"] == "ringlog.commands":
                self.commands[schema["name"], schema["ringlog.version"]] = parsed
            elif schema["name"] == "Request":
                self.requests = key.decode()

    def decode(self, data):
        """Return (full name, record), or None for a record of an unknown schema."""
        schema = self.by_key.get(data[2:10][::-1].hex()) if data and data[:2] == b"\xc3\x01" else None
        return schema and (schema["name"], fastavro.schemaless_reader(io.BytesIO(data[10:]), schema, None))

    def payload(self, kind, fields):
        """Return (version, payload) in the lowest version that has all of the fields."""
        versions = sorted(version for name, version in self.commands if name == kind)
        for version in versions:
            schema = self.commands[kind, version]
            if fields.keys() <= {field["name"] for field in schema["fields"]}:
                return version, body(schema, fields)
        raise SystemExit(f"no version of {kind} has the fields {sorted(fields)}")


def body(schema, record):
    """Return plain Avro binary. fastavro fills in the defaults of fields that the record does not have."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def digest(kind, version, payload):
    """Return the digest of a command."""
    name, number = kind.encode(), str(version).encode()
    inner = b"S%d:%b" % (len(name), name) + b"I%d:%b" % (len(number), number) + b"B%d:%b" % (len(payload), payload)
    return hashlib.sha256(b"L%d:%b" % (len(inner), inner)).hexdigest()


def submit(config, cluster, kind, fields, request_id=None, since=None, offset=None):
    """Return the answer as text."""
    schemas = Schemas(config, cluster)
    heads = [schemas.decode(value)[1] for _, value in Topic(config, f"{cluster}.epochs", 0).new(10)]
    cluster_id = uuid.UUID(heads[-1]["cluster_id"]).bytes
    results = Topic(config, f"{cluster}.results")
    log = Topic(config, f"{cluster}.metadata", offset and int(offset))
    epochs = Topic(config, f"{cluster}.epochs", 0)
    request_id = uuid.UUID(request_id) if request_id else uuid.uuid4()
    since = int(since) if since else heads[-1]["epoch"]
    print("to continue:", request_id, since, log.next, flush=True)

    version, payload = schemas.payload(kind, fields)
    request = {"request_id": request_id.bytes, "since_epoch": since, "submitter": "example"}
    request |= {"kind": kind, "version": version, "payload": payload}
    key = schemas.requests
    data = b"\xc3\x01" + bytes.fromhex(key)[::-1] + body(schemas.by_key[key], request)
    producer = kafka.Producer({**config, "enable.idempotence": True, "acks": "all"})

    entries, head, refused = {}, heads[-1], None
    send, pauses, deadline = time.monotonic(), list(RESEND_S), time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        if time.monotonic() >= send:
            producer.produce(f"{cluster}.requests", data)
            producer.flush(10)
            send = time.monotonic() + (pauses.pop(0) if len(pauses) > 1 else pauses[0])
        for _, value in results.new(0.2):
            name, result = schemas.decode(value) or ("", {})
            is_ours = name == "ringlog.requests.Result" and result["request_id"] == request_id.bytes
            if is_ours and result["digest"] == digest(kind, version, payload):
                refused = result
        # The log is read after the results: it then has each entry and each change of the validator before a result.
        for _, value in log.to_end():
            name, entry = schemas.decode(value) or ("", {})
            if name == "ringlog.log.LogEntry" and entry["cluster_id"] == cluster_id:
                entries.setdefault(entry["state_id"], entry)
        for _, value in epochs.new(0.1):
            head = schemas.decode(value)[1]
        found, taken = applied(entries, head, request_id.bytes, schemas)
        if found:
            entry, epoch = found
            same = (entry["kind"], entry["version"], entry["command"]) == (kind, version, payload)
            return f"applied: epoch {epoch}" if same else f"request_id_reused: epoch {epoch} has another command"
        if refused and refused["term"] >= taken and head["epoch"] >= refused["epoch"]:
            return f"{refused['outcome']}: {refused['code']}: {refused['detail']}"
    return "no answer: the outcome is open. Run the program again with the printed arguments"


def applied(entries, head, request_id, schemas):
    """Follow the chain of states back from the published head. Every entry on it is applied, and no other one.

    Return the entry of the request with its epoch, if there is one, and the newest term of the validator.
    """
    found, term, epoch, state = None, 0, head["epoch"], uuid.UUID(head["state_id"]).bytes
    while state in entries:
        entry = entries[state]
        if entry["request_id"] == request_id:
            found = entry, epoch
        if entry["kind"] == "TakeOver":
            schema = schemas.commands["TakeOver", entry["version"]]
            taken = fastavro.schemaless_reader(io.BytesIO(entry["command"]), schema, None)
            term = max(term, taken["term"] if taken["role"] == "validator" else 0)
        state, epoch = entry["prev_state_id"], epoch - 1
    return found, term


def options(path):
    """Return the options of a properties file."""
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
    path, cluster, kind, fields, *earlier = sys.argv[1:]
    print(submit(options(path), cluster, kind, json.loads(fields), *earlier))
