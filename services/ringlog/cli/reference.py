"""Generator of the pages in ``docs/reference``: ``python -m ringlog.cli.reference FOLDER``.

The pages are derived from the code: docstrings of commands and rules, error codes, bounds of settings, topic
specifications, and the help of the command line. Invariant: the committed pages equal the generated ones, which a test
checks. ``python -m ringlog_schemas.docs`` generates the page of the schemas.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from inspect import formatannotation
from pathlib import Path
from typing import Any

import typer

from ringlog import files as private
from ringlog.cache import redis_url
from ringlog.cache.redis_url import BadRedisUrl
from ringlog.cli.codes import PROGRAM_CODES
from ringlog.cli.help import usage_name
from ringlog.cli.main import app
from ringlog.cli.reference_pages import http_api, python_names, redis_layout
from ringlog.client import changes
from ringlog.client import errors as client_errors
from ringlog.client.cdc import errors as cdc_errors
from ringlog.files import FileUnusable
from ringlog.kernel import registry as codes
from ringlog.kernel.changes import PUBLICATIONS
from ringlog.kernel.model.principals import ANY_ROLE
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.registry import COMMANDS, RULES, VERSIONS
from ringlog.kernel.values import Command
from ringlog.log import errors as log_errors
from ringlog.log.errors import LogError
from ringlog.log.kafka import permissions as rights
from ringlog.log.kafka.acls import ALL_SUFFIXES, NEEDS, BrokerNeeds
from ringlog.log.kafka.topics import TOPICS, TopicSpec
from ringlog.operator import certificates
from ringlog.operator.certificates import AuthorityInUse, CertificatesFailed
from ringlog.protocol.nodes import errors as node_errors
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.roles import ROLES
from ringlog.runtime import settings, trust
from ringlog.runtime.kafka import security as kafka_security
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.runtime.monitoring.metrics import ALL_METRICS
from ringlog.runtime.settings import BadProcessSettings, ProcessSettings
from ringlog.runtime.trust import BadTrustConfig
from ringlog.wire.avro.avsc import documented
from ringlog.wire.data import REFUSALS
from ringlog_cdc.definition.reasons import REASONS
from ringlog_debezium.mutations import REASONS as IMPORT_REASONS

READ_BY: Mapping[str, str] = {
    "kafka_config": "every client of Kafka",
    "metrics_port": "agents",
    "metrics_host": "agents, `ringlog cdc run`",
    "insecure": "agents that serve metrics, nodes, `ringlog cdc run`",
    "trust_config": "nodes, agents that serve metrics, every client of nodes",
}
"""Readers of process variables that not all agents and nodes read."""

COMMANDS_SHOWN_MAX = 20
"""The most commands that are named as readers of a variable."""

HEAD = "<!-- Made by `python -m ringlog.cli.reference docs/reference`; do not edit. -->"


def _change_topic(suffix: str) -> tuple[str, str]:
    """Return (keys of a change topic, schemas of its values)."""
    declarations = [declaration for declaration in PUBLICATIONS if declaration.topic == suffix]
    schemas = (f"`ringlog.changes.{declaration.change.__name__}`" for declaration in declarations)
    return "; ".join(declaration.key for declaration in declarations), "; ".join(schemas)


RECORDS: Mapping[str, tuple[str, str]] = {
    "metadata": ("none", "`ringlog.log.LogEntry`"),
    "requests": (
        "none",
        "`ringlog.requests.Request`; `ringlog.requests.CodedRequest`; `ringlog.requests.RequestBatch`",
    ),
    "results": ("none", "`ringlog.requests.Result`"),
    "acks": ("node id", "`ringlog.acks.NodeAck`; `ringlog.acks.CodedAck`"),
    "load": ("node id", "`ringlog.load.NodeLoad`; `ringlog.load.CodedLoad`"),
    "mutations": ("`keyspace.table`, a zero byte, the composed partition key", "`ringlog.mutations.Mutation`"),
    "cdc": ("the stream id, 16 bytes", "`ringlog.cdc.CdcRow`"),
    "dead-letters": ("`topic/partition/offset` of the mutation", "`ringlog.cdc.DeadLetter`"),
    "agents": ("role", "`ringlog.agents.AgentStatus`"),
    "snapshots": (
        "`epoch/head`, `epoch/role`, `id/number`",
        "`ringlog.snapshots.StoredSnapshot`; `ringlog.snapshots.SnapshotConfirmation`; "
        "`ringlog.snapshots.SnapshotChunk`",
    ),
    "schemas": ("fingerprint, 16 hex digits", "the schema as JSON text"),
    **{declaration.topic: _change_topic(declaration.topic) for declaration in PUBLICATIONS},
    "epochs": ("`head`", "`ringlog.changes.EpochChange`"),
}
"""(key, schema of the value) by the suffix of a topic."""


_ABOUT_PROGRAM = """\
The options `--bootstrap`, `--cluster`, `--kafka-config` and `--trust-config` are accepted before and after the command.
For an unknown command, the program suggests the nearest one. Older spellings of commands and options remain valid, but
the help does not show them.

Options take precedence over `RINGLOG_*` variables, and variables over the cluster in use. `ringlog cluster create`,
`ringlog cluster use` and `ringlog demo` set the cluster in use. Exit status: 0 done; 1 rejected or failed, with a
stable code first on standard error; 2 wrong usage or an invalid line; 3 a missing installation; 130 interrupted.

With `--json` standard output has one JSON value, a result or an error: `{"code", "detail", "ways_out"}`. A rejected
command also has `outcome`. `ways_out` lists the next steps, often commands.
"""
_ABOUT_LOG_COMMANDS = """\
The commands that change the metadata. The field names are those of the Avro records, of the JSON input of
`ringlog submit` and `ringlog rehearse`, and of the classes in `ringlog.kernel.registry`. In JSON, a node may be given
by its name, and `Join` accepts `num_tokens` instead of `tokens`. Fields with a sensible default may be omitted. Times
are in microseconds since 1970 UTC. Tokens are signed 64-bit numbers.
"""
_ABOUT_ROLES = """\
Each request is sent by a principal, if the cluster has principals. A principal needs one of the roles in the row of the
command. The role admin includes the role operator. Only agents send the commands of agents. A node or a CDC
writer sends commands only about the node or writer that has the principal's name. An operator with keyspaces sends only
schema commands of these keyspaces. Agents and the recovery write the log directly, which the broker's permissions
protect ([decision 187](../decisions/0187-sign-requests-with-keys-of-principals.md)).
"""
_ABOUT_CODES = """\
Programs can branch on these codes: a released code keeps its meaning. A rejection has a code of the first table and a
sentence that names the field and the rule.
"""
_ABOUT_SETTINGS = """\
Settings are part of the state: the command `ChangeSettings` changes them in the log, and every reader has the same
values at an epoch. `ringlog cluster settings` shows the current values.
"""
_ABOUT_TOPICS = """\
`ringlog cluster create` creates the topics with names of the form `<cluster>.<topic>`. **Required** settings protect
correctness: Ringlog checks them, and rejects other values with the command that corrects them (`topic_misconfigured`).
**Initial** settings may be changed. Records of all topics except `mutations` have the times of their authors. These
topics therefore lift the limits `message.timestamp.after.max.ms` and `message.timestamp.before.max.ms` of the broker;
agents raise lower values. Readers read some topics completely at every start. The broker compacts these topics within
minutes: agents lower values above **at most**. On three brokers every topic gets `replication 3` and
`min.insync.replicas 2`, on one broker a single copy. On other numbers pass `--kafka-replication`. With three or more
copies, more than half of them must acknowledge. Values are Avro single objects (see [schemas](schemas.md)). A record
without a value deletes its key.
"""

_ABOUT_PERMISSIONS = """\
`ringlog cluster acls --for KIND` prints these permissions as ACLs ([permissions](../deploy/permissions.md)). READ,
WRITE and DELETE imply DESCRIBE. DESCRIBE_CONFIGS comes with DESCRIBE. Groups and transactional ids follow the
cluster's name.
"""

_ABOUT_METRICS = """\
`/metrics` serves these metrics in the text format of Prometheus, and `/health` the readiness of the process
([monitoring](../operate/monitoring.md)). Metrics of an agent have the label `role`, those of a node the label `node`.
Counters begin at zero when the process starts. A histogram has `_bucket`, `_sum` and `_count`. A process omits values
that it does not know yet.
"""


def pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    made: dict[str, Callable[[], Iterator[str]]] = {
        "commands.md": _program,
        "log-commands.md": _log_commands,
        "roles.md": _roles,
        "codes.md": _codes,
        "settings.md": _settings,
        "topics.md": _topics,
        "metrics.md": _metrics,
        "python.md": partial(python_names, HEAD, _table, _prose),
        "http-api.md": partial(http_api, HEAD, _table),
        "redis.md": partial(redis_layout, HEAD, _table),
    }
    return {name: "\n".join(make()).rstrip("\n") + "\n" for name, make in made.items()}


def write(folder: Path) -> tuple[str, ...]:
    """Write the pages that differ from the files in the folder, and return their names."""
    changed = []
    for name, text in pages().items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return tuple(changed)


def _prose(text: str | None) -> str:
    """Return a docstring as Markdown, with each paragraph on one line."""
    paragraphs = inspect.cleandoc(text or "").replace("``", "`").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: object) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(_cell(item) for item in row) + " |"
    yield ""


# ------------------------------------------------------------------------------------------------ the program


def _program() -> Iterator[str]:
    yield from ("# Commands of the program", "", HEAD, "")
    yield _ABOUT_PROGRAM
    for path, command in _leaves(("ringlog",), typer.main.get_command(app)):
        yield from _program_command(" ".join(path), command)


def _leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every executable command that the help shows, with its words."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    names = [name for name in names if not command.get_command(None, name).hidden]
    if not names or command.invoke_without_command:
        yield path, command
    for name in names:
        yield from _leaves((*path, name), command.get_command(None, name))


def _program_command(call: str, command: Any) -> Iterator[str]:
    parameters = [p for p in command.params if p.name not in ("help", "install_completion", "show_completion")]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    usage = " ".join([call, *map(usage_name, arguments)])
    yield from (f"## {call}", "", "```text", usage, "```", "", _prose(command.help), "")
    if parameters:
        rows = [(_names(p), _meaning(p)) for p in parameters]
        yield from _table(("argument or option", "meaning"), rows)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{usage_name(parameter)}`"
    value = f" {parameter.metavar}" if parameter.metavar else ""
    return ", ".join(f"`{name}{value}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _is_of_machine(parameter: Any) -> bool:
    """Return True if the default depends on the machine and is described in the help."""
    return "for each core" in (parameter.help or "")


def _meaning(parameter: Any) -> str:
    text = parameter.help or ""
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    shown = default is not None and not callable(default) and not isinstance(default, bool) and str(default) != ""
    if shown and not parameter.required and not _is_of_machine(parameter):
        text += f" Default: `{default}`."
    if getattr(parameter, "envvar", None):
        text += f" Variable: `{parameter.envvar}`."
    return text.strip()


# --------------------------------------------------------------------------------------------- the log's commands


def _log_commands() -> Iterator[str]:
    yield from ("# Commands of the log", "", HEAD, "")
    yield _ABOUT_LOG_COMMANDS
    for kind, model in COMMANDS.items():
        yield from (f"## {kind}", "", f"Version {VERSIONS[kind]}. {_prose(model.__doc__)}", "")
        yield from (f"Rule: {_prose(RULES[model].__doc__)}", "")
        rows = [(f"`{name}`", f"`{_type_name(hint)}`", doc) for name, hint, doc, _ in documented(model)]
        if rows:
            yield from _table(("field", "type", "meaning"), rows)


def _type_name(hint: Any) -> str:
    return formatannotation(hint).replace("ringlog.kernel.values.", "")


def _roles() -> Iterator[str]:
    yield from ("# Roles", "", HEAD, "")
    yield _ABOUT_ROLES
    rows = [(f"[`{kind}`](log-commands.md#{kind.lower()})", _needed(model)) for kind, model in COMMANDS.items()]
    yield from _table(("command", "roles that may send it"), rows)


def _needed(model: type[Command]) -> str:
    return "every principal with a role" if model.NEEDS == ANY_ROLE else ", ".join(model.NEEDS)


# ------------------------------------------------------------------------------------------------------- codes


def _sentences(reasons: tuple[tuple[str, str], ...]) -> list[tuple[str, ...]]:
    return [(f"`{code}`", f"{text[0].upper()}{text[1:]}.") for code, text in reasons]


def _codes() -> Iterator[str]:
    yield from ("# Codes", "", HEAD, "")
    yield _ABOUT_CODES
    yield from ("## Why a command is refused", "")
    yield from _table(("code", "meaning"), [(f"`{code}`", text) for code, text in sorted(codes.CODES.items())])
    yield from ("## Why a write has no CDC row", "", "The `reason` of a dead letter. The first that holds counts.", "")
    yield from _table(("reason", "meaning"), _sentences(REASONS))
    yield from ("## Why a change event is no mutation", "", "The `reason` of a dead letter of an import.", "")
    yield from _table(("reason", "meaning"), _sentences(IMPORT_REASONS))
    yield from ("## Why a replica refuses", "", "Coordinators and gaining nodes ask again, or others.", "")
    yield from _table(("code", "meaning"), [(f"`{code}`", text) for code, text in sorted(REFUSALS.items())])
    yield from (
        "## Errors of the log and of the client",
        "",
        "First word on standard error; `code` of the exception.",
        "",
    )
    rows = sorted((f"`{kind.code}`", f"`{kind.__name__}`", _prose(kind.__doc__)) for kind in _errors())
    yield from _table(("code", "exception", "meaning"), rows)
    for title, table in PROGRAM_CODES.items():
        yield from (f"## {title}", "", "First word on standard error.", "")
        yield from _table(("code", "meaning"), [(f"`{code}`", text) for code, text in sorted(table.items())])


def _errors() -> Iterator[
    type[
        LogError
        | BadKafkaConfig
        | BadProcessSettings
        | BadRedisUrl
        | BadTrustConfig
        | AuthorityInUse
        | CertificatesFailed
        | FileUnusable
        | NodeFailed
    ]
]:
    for module in (
        log_errors,
        rights,
        client_errors,
        changes,
        cdc_errors,
        kafka_security,
        redis_url,
        settings,
        trust,
        certificates,
        private,
        node_errors,
    ):
        for found in vars(module).values():
            if isinstance(found, type) and found.__module__ == module.__name__ and "code" in vars(found):
                yield found


# ---------------------------------------------------------------------------------------------------- settings


def _settings() -> Iterator[str]:
    yield from ("# Settings", "", HEAD, "", "## Of the cluster", "")
    yield _ABOUT_SETTINGS
    rows = [
        (f"`{name}`", f"{rule.default:,}", f"{rule.minimum:,} to {rule.maximum:,}", rule.unit, rule.meaning)
        for name, rule in sorted(SETTINGS.items())
    ]
    yield from _table(("setting", "default", "bounds", "unit", "meaning"), rows)
    yield from ("## Of a process", "", "Variables of the environment.", "")
    yield from _table(("variable", "default", "read by"), [*_process_variables(), *sorted(_command_variables())])


def _process_variables() -> Iterator[tuple[str, str, str]]:
    for name, field in ProcessSettings.model_fields.items():
        default = "`$XDG_STATE_HOME/ringlog`" if field.default_factory is not None else f"`{field.default}`"
        readers = READ_BY.get(name, f"agents ({', '.join(ROLES)}) and nodes")
        yield f"`RINGLOG_{name.upper()}`", default, readers


def _command_variables() -> set[tuple[str, str, str]]:
    """Return the variables of command options, without those of every process."""
    table = {f"RINGLOG_{name.upper()}" for name in ProcessSettings.model_fields}
    readers: dict[str, set[str]] = {}
    for path, command in _leaves(("ringlog",), typer.main.get_command(app)):
        for parameter in command.params:
            variable = getattr(parameter, "envvar", None)
            if variable and variable not in table:
                readers.setdefault(variable, set()).add(" ".join(path))
    many = {variable for variable, by in readers.items() if len(by) > COMMANDS_SHOWN_MAX}
    few = {variable: ", ".join(f"`{user}`" for user in sorted(by)) for variable, by in readers.items()}
    return {(f"`{one}`", "", "every command with `--bootstrap`" if one in many else few[one]) for one in readers}


# ------------------------------------------------------------------------------------------------------ topics


def _topics() -> Iterator[str]:
    yield from ("# Topics", "", HEAD, "")
    yield _ABOUT_TOPICS
    rows = [(f"`{spec.suffix}`", spec.partitions, _kept(spec), *RECORDS[spec.suffix]) for spec in TOPICS]
    yield from _table(("topic", "partitions", "kept", "key", "value"), rows)
    yield from ("## Settings", "")
    settings = [
        (f"`{spec.suffix}`", _pairs(spec.required), _pairs(spec.initial), _pairs(spec.at_most)) for spec in TOPICS
    ]
    yield from _table(("topic", "required", "initial", "at most"), settings)
    yield from ("## Permissions", "", _ABOUT_PERMISSIONS)
    rights_rows = [
        (f"`{kind.value}`", needs.purpose, operation, ", ".join(f"`{suffix}`" for suffix in dict.fromkeys(suffixes)))
        for kind, needs in NEEDS.items()
        for operation, suffixes in _allowed(needs)
    ]
    yield from _table(("`--for`", "processes", "operation", "on"), rights_rows)


def _allowed(needs: BrokerNeeds) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (operation, resources) of a kind of process."""
    for operation, suffixes in needs.topics.items():
        yield operation, ("every topic",) if {*suffixes} >= {*ALL_SUFFIXES} else suffixes
    if needs.given:
        yield ", ".join(needs.given), ("--topic",)
    if groups := (*needs.groups, *(["--group"] if needs.joins else ())):
        yield "read (group)", groups
    if needs.transactions:
        yield "write (transactional id)", needs.transactions


def _kept(spec: TopicSpec) -> str:
    if spec.required["cleanup.policy"] == "compact":
        return "compacted"
    retention = {**spec.initial, **spec.required}["retention.ms"]
    return "without limit" if retention == "-1" else f"{int(retention) // 86_400_000} days"


def _pairs(settings: Mapping[str, str]) -> str:
    return " ".join(f"`{name}={value}`" for name, value in sorted(settings.items()))


# ----------------------------------------------------------------------------------------------------- metrics


def _metrics() -> Iterator[str]:
    yield from ("# Metrics", "", HEAD, "")
    yield _ABOUT_METRICS
    for by in dict.fromkeys(figure.by for figure in ALL_METRICS.values()):
        yield from (f"## Of {by}", "")
        rows = [
            (
                f"`{figure.served[0] if figure.kind == 'counter' else figure.name}`",
                figure.kind,
                _labels(figure.labels),
                figure.meaning,
            )
            for figure in ALL_METRICS.values()
            if figure.by == by
        ]
        yield from _table(("name", "kind", "labels", "meaning"), rows)


def _labels(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main(arguments: Sequence[str]) -> int:
    """Write the pages to the folder given as the only argument."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m ringlog.cli.reference FOLDER", file=sys.stderr)
        return 2
    changed = write(Path(arguments[0]))
    print(f"written: {', '.join(changed)}" if changed else "all pages are current")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
