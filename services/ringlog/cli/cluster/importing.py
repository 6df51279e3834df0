"""``ringlog import``: make a plan of the nodes and the schema of a running Cassandra or ScyllaDB cluster."""

from __future__ import annotations

import json
import ssl
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.shared.connection import Json, fail, out
from ringlog.extras import require
from ringlog.files import exposure, read_text, write_private
from ringlog.operator.errors import Refused
from ringlog.operator.imports.mapping import ImportedPlan, plan_of
from ringlog.operator.imports.recording import CASSANDRA, SCYLLA, SourceRecording, read_recording
from ringlog.operator.views.words import printable

_PASSWORD_BYTES_MAX = 4_096


class Kind(Enum):
    """The software of the imported cluster."""

    CASSANDRA = CASSANDRA
    SCYLLA = SCYLLA


def import_plan(
    kind: Annotated[Kind, typer.Argument(metavar="SOURCE", help="Software of the source: cassandra or scylla.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File for the plan.")],
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address of a node.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="CQL port of the node.", min=1, max=65_535)] = 9_042,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="User of the source.")] = "",
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="File with the password of the user.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="CA certificates of the source. Enables TLS.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Client certificate.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the client certificate.")
    ] = None,
    keyspace: Annotated[
        list[str] | None,
        typer.Option("--keyspace", metavar="NAME", help="Keyspace to import. May be repeated. Default: all of users."),
    ] = None,
    registered: Annotated[
        bool, typer.Option("--registered", help="Leave out registrations: the nodes register themselves.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--save-recording", metavar="FILE", help="File for the answers of the source.")
    ] = None,
    recording: Annotated[
        Path | None, typer.Option("--recording", metavar="FILE", help="Recorded answers, in place of a running source.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import nodes and schema of another database as a plan.

    Reads the system tables of one node, and changes nothing. The plan has nodes, tokens, keyspaces and schema.
    Unsupported objects are left out and listed. Then rehearse the plan and stage its parts.
    """
    try:
        if recording is not None:
            source = read_recording(_text(recording))
        else:
            source = _read(kind.value, host, port, (user, password_file), (ca, certificate, key))
        if source.kind != kind.value:
            fail("bad_source", f"{recording} is a recording of {source.kind}", 2)
        if record is not None:
            write_private(record, source.json())
        plan = plan_of(source, keyspace or (), registered=registered)
    except Refused as refused:
        fail(refused.code, str(refused))
    write_private(output, plan.text())
    _print(plan, output, as_json)


def _read(
    kind: str, host: str, port: int, login: tuple[str, Path | None], tls: tuple[Path | None, Path | None, Path | None]
) -> SourceRecording:
    require("audit")
    from ringlog.operator.imports.source import Endpoint, read_source  # slow to load

    user, password_file = login
    if bool(user) != bool(password_file):
        fail("bad_usage", "--user and --password-file belong together", 2)
    password = "" if password_file is None else _secret(password_file)
    return read_source(kind, Endpoint(host, port, user, password, _tls(*tls)))


def _secret(path: Path) -> str:
    try:
        if why := exposure(path, path.stat(), is_secret=True):
            fail("bad_option", why, 2)
        return read_text(path, _PASSWORD_BYTES_MAX).removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        fail("bad_file", f"{path}: {error}", 2)


def _tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if bool(certificate) != bool(key) or (certificate and not ca):
        fail("bad_usage", "--tls-certificate and --tls-key belong together, and need --tls-ca", 2)
    if ca is None:
        return None
    try:
        found = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            found.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        fail("bad_file", f"{ca}, {certificate}, {key}: {error}", 2)
    return found


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        fail("bad_file", f"{path}: {error}", 2)


def _print(plan: ImportedPlan, output: Path, as_json: bool) -> None:
    facts = {
        "nodes": plan.nodes,
        "keyspaces": list(plan.keyspaces),
        "statements": plan.statements,
        "parts": plan.parts(),
        "left_out": list(plan.left_out),
        "differences": list(plan.differences),
    }
    if as_json:
        typer.echo(json.dumps({"plan": str(output)} | facts))
        return
    for title, lines in (("left out", plan.left_out), ("different", plan.differences)):
        for line in lines:
            out.print(printable(f"{title}: {line}"), markup=False)
    counts = f"{plan.nodes} nodes, {len(plan.keyspaces)} keyspaces, {plan.statements} statements"
    out.print(f"{output} has {counts} in {plan.parts()} parts", markup=False)
