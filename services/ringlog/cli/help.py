"""The help of commands: names of values, old spellings of options, and one plain layout.

An option's first long name is shown. Its later long names are old spellings, which are accepted and hidden. Invariants
(``tests/cli/test_help.py``): a shown name has one meaning in all commands, and the help shows no Python type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ADMIT_LOSS: Final = "Continue even if rows may be lost."
ARCHIVE: Final = "Location of the archive: a folder, or a URL that fsspec supports."
CHART: Final = "SVG file for a chart of the tablets at each epoch."
DRY_RUN: Final = "Print the effect, and change nothing."
FACTOR: Final = "Number of replicas of each range."
FROM: Final = "Initial state: a file of `ringlog log --dump`, or live[:CLUSTER]."
JOBS: Final = "Number of processes. Default: one for each core."
KAFKA_REPLICATION: Final = "Copies of each record in new topics."
LAKE: Final = "Folder or URL of the Delta tables."
NUM_TOKENS: Final = "Number of tokens, chosen to balance the ring."
OPERATOR: Final = "Name of the operator, recorded in the log."
REASON: Final = "Reason, recorded in the log."
SHARDS: Final = "Number of shards (cores)."
TOKEN: Final = "Token of the node. May be repeated."
UNTIL_END: Final = "Stop at the current end of the topics."
WHY: Final = "Show the reasons for moves and for unchanged tablets."
WRITER: Final = "Name of the CDC writer in the metadata log."
"""Texts of options that several commands have."""
COMPLETION: Final = frozenset({"install_completion", "show_completion"})
"""Parameters that typer adds to every group. Only the root keeps them."""
_WORDS: Final[Mapping[str, str]] = {
    "HOST": "--advertise --listen",
    "HOST:PORT": "--address --discovery-address --listener",
    "HOST:PORT,...": "--bootstrap --seeds",
    "PORT": "--data-port --metrics-port --port",
    "NAME": "--client --cluster --datacenter --group --instance --keyspace --name --operator --profile --rack "
    "--source-datacenter --storage-profile --user --writer --feature --agents --by --role",
    "NODE": "--exclude --ignore --node",
    "FILE": "--dump --export --from --history --kafka-config --producer --progress --request-key --request-master "
    "--sqlite --state --trust-config --to",
    "FILE.svg": "--chart",
    "FILE.md": "--page",
    "FOLDER": "--checkpoint --data --delays --histories --save",
    "LOCATION": "--archive --lake",
    "JAR,...": "--jars",
    "SECONDS": "--image-ttl --scale-down --scale-up --seconds --timeout --trigger-seconds --wait-seconds",
    "DAYS": "--ca-days --days",
    "MICROSECONDS": "--new-timestamp --timestamp",
    "BYTES": "--row-bytes-max",
    "EPOCH": "--below --epoch --from-epoch --since-epoch",
    "TOKEN": "--token",
    "N": "--base --capacity --clients --commit-every --coordinators --datacenters --factor --flights --fresh "
    "--generations --jobs --kafka-replication --keys --last --limit --lines --max-configurations "
    "--max-offsets-per-trigger --max-seeds --movements --new-tokens --nodes --num-tokens --parallel --partitions "
    "--quorum --racks --rejected --replicas --revision --sample --shards --times --written",
    "N|A..B": "--seed",
    "TEXT": "--reason --writer-stopped",
    "KEYSPACE.TABLE": "--table",
    "TOPIC": "--topic",
    "PARTITION:OFFSET": "--at",
    "NUMBER=FILE": "--schema",
    "COMMAND": "--kind",
    "OPERATION": "--operation",
    "STAGE": "--stage",
    "PATTERN": "--lake-table --participant --submitter",
    "ID": "--request-id",
    "VERSION": "--release",
    "TIME": "--since --start",
    "WORD": "--day",
    "PERSON": "--on-behalf",
    "URL": "--master",
    "OPTIONS": "--java-options",
    "SASL_SSL|SASL_PLAINTEXT": "--protocol",
    "strong|high_availability": "--mode",
    "default|quick": "--broker-profile",
    "ONE|TWO|THREE|QUORUM|LOCAL_QUORUM|EACH_QUORUM|ALL": "--level",
    "KIND": "--for",
    "PER-SECOND": "--rate",
    "rows|registers": "--only",
    "ring|tablets|zone|all": "--placement",
    "table|wide|json|yaml": "--output",
    "ours|porcupine|both": "--checker",
    "ms|us|ns": "--unit",
}
METAVARS: Final = {name: word for word, names in _WORDS.items() for name in names.split()}
"""The word for an option's value, by the shown name of the option."""


def usage_name(argument: Any) -> str:
    """Return an argument as a usage line shows it: ``NODE``, ``[FILE]``, ``[TABLET...]``."""
    name = argument.metavar or argument.name.upper().replace("_", "-")
    name += "" if argument.nargs == 1 else "..."
    return name if argument.required else f"[{name}]"


def prepare(command: Any) -> None:
    """Give a command and its subcommands the layout and the words of this module."""
    for inner in getattr(command, "commands", {}).values():
        prepare(inner)
    vars(command)["rich_markup_mode"] = None  # Loading rich takes longer than most commands.
    command.help = (command.help or "").replace("``", "`")
    command.params = [one for one in command.params if one.name not in COMPLETION]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _prepare_argument(parameter)
        else:
            _prepare_option(parameter)


def _prepare_argument(argument: Any) -> None:
    shown, record_of = usage_name(argument), argument.get_help_record
    argument.metavar = shown.strip("[]") if argument.metavar is None else argument.metavar
    vars(argument)["get_usage_pieces"] = lambda _context: [shown]
    argument.get_help_record = lambda context: (shown, _without_required((record_of(context) or ("", ""))[1]))


def _without_required(text: str) -> str:
    """Return the help of an argument without ``[required]``, which its usage shows by missing brackets."""
    return text.replace("; required]", "]").removesuffix("[required]").rstrip()


def _prepare_option(option: Any) -> None:
    long = [name for name in option.opts if name.startswith("--")]
    option.old_names, add_to_parser = long[1:], option.add_to_parser
    shown = [name for name in option.opts if name not in option.old_names]
    if not option.is_flag and not option.count and option.metavar is None and long:
        option.metavar = METAVARS.get(long[0])

    def add_all(parser: Any, context: Any) -> None:
        option.opts = [*shown, *option.old_names]
        add_to_parser(parser, context)
        option.opts = shown

    option.opts, option.add_to_parser = shown, add_all
