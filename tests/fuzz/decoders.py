"""Find all decoders in the sources, by their names or their calls. Each needs a fuzz target or an exemption.

``EXEMPT`` lists decoders that never read untrusted bytes, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOTS = (
    "services/ringlog",
    "services/ringlog_audit",
    "services/ringlog_demo",
    "services/ringlog_sim",
    "services/ringlog_testing",
    "streaming/ringlog_cdc",
    "streaming/ringlog_cdc_reader",
    "streaming/ringlog_debezium",
    "schemas/ringlog_schemas",
)
NAMED = re.compile(r"(decode|deserialize|parse|unpack|peek|from_json|load_record)(_\w+)?")
CALLS = {"json.loads", "schemaless_reader", "fastavro.schemaless_reader", "fastavro.reader"}
"""Calls that turn bytes into values."""

EXEMPT = {
    "ringlog_audit.sources.topics.Decoder.__init__": "schemas that the cluster published; a bad one ends the audit",
    "ringlog_audit.sources.topics.Decoder.decode": "any failure becomes AuditError, which is the audit's verdict",
    "cli.json_commands.submit": "an operator's argument, read like a rehearsed line; the rest is author_json",
    "cli.cluster.plans._lines": "an operator's file, read like a rehearsed line; the rest is author_json",
    "cli.completion._ask": "whatever fails completes no name (tests/cli/test_completion.py)",
    "log.snapshots.decode_snapshot": "compared by its digests (tests/log/test_snapshots.py)",
    "node.registers.packed.decode_record": "cut and damaged in tests/node/test_cells.py",
    "cli.cluster.app.parse_settings": "an operator's NAME=VALUE arguments; a bad one is refused with its text",
    "cli.shared.options.print_value": "reads what it has just written",
    "ringlog_testing.cli.delays.show_rules": "reads what it has just written",
    "cli.schema.table.create_table": "an operator's file, read like a rehearsed line; the rest is author_json",
    "client.cdc.copies.sqlite.SqliteTables._sweep": "what the class wrote into its own database, in one transaction",
    "client.cdc.copies.tables.Copies.all": "what the class wrote into its own database, in one transaction",
    "client.cdc.copies.state_text.state_of": "what the class wrote into its own database, in one transaction",
    "client.creation.schemas.incompatibilities": "passes over what is no schema (tests/client/test_creation.py)",
    "ringlog_demo.observe._JsonLines.fresh": "lines of the demo's own processes",
    "node.rows.disk_rows.DiskRows._read_mark": "its sum is looked at first (tests/node/test_disk_rows.py)",
    "operator.intents.replication.parse_setting": "an operator's argument; a bad one is refused with its text",
    "ringlog_debezium.envelope.avro_schema": "an operator's file; whatever is wrong with it is a bad option",
    "ringlog_debezium.stage._clock": "what the import itself wrote beside an offset",
    "ringlog_cdc.plan.recovered_rows.may_revive": "turns its own values into JSON and back, to compare both in a form",
    "ringlog_cdc.images.store.ImageStore._load": "what the same class wrote into its own database",
    "ringlog_cdc.images.store.ImageStore._take_back": "what the same class wrote into its own database",
    "operator.views.row_text._meanings": "what an operator typed; what is no JSON is text",
    "ringlog_cdc.report.listener.Listener.onQueryProgress": "what Spark tells about the job's own query",
    "ringlog_schemas.catalogue._schema_in": "the package's own files",
    "ringlog_testing.histories.porcupine.ask": "the answer of a program of the project",
    "wire.avro.binary.RecordCodec.resolve": "reads again what RecordCodec.decode has read",
}


def decoders(root: Path) -> Iterator[str]:
    """Yield the dotted names, below ``ringlog``, of all functions that are named like a decoder or call one."""
    for folder in ROOTS:
        top = root / folder
        for path in sorted(top.rglob("*.py")):
            module = ".".join(path.relative_to(top).with_suffix("").parts)
            prefix = "" if top.name == "ringlog" else f"{top.name}."
            for name, body in _functions(ast.parse(path.read_text(encoding="utf-8"))):
                if NAMED.fullmatch(name.rpartition(".")[2]) or _calls_one(body):
                    yield f"{prefix}{module}.{name}"


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):  # a codec's pair of functions is not a definition
            made = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from ((name, ast.Pass()) for name in made)
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, ast.FunctionDef))


def _calls_one(body: ast.AST) -> bool:
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                name = f"{called.value.id}.{called.attr}"
            else:
                name = called.id if isinstance(called, ast.Name) else ""
            if name in CALLS:
                return True
    return False
