"""Rules of the help: imperative summaries, one meaning for each option name, no Python types, one style."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ringlog.cli.help import METAVARS, prepare, usage_name
from ringlog.cli.main import COMMANDS, GROUPS, app
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.operator.answers import explained
from tests.cli.known_commands import options_of

SUMMARY_MAX = 60
WIDTH = 80
SHARED: dict[str, str] = {
    "--all": "also the entries that a command leaves out",
    "--data": "the data folder",
    "--datacenter": "a datacenter by its name",
    "--datacenters": "the number of datacenters",
    "--format": "the format of what a command reads or prints",
    "--from": "a file of `ringlog log --dump`",
    "--group": "a consumer group by its name",
    "--insecure": "connections without certificates",
    "--keyspace": "a keyspace by its name",
    "--kind": "a command by its name",
    "--listen": "the address to listen on",
    "--limit": "the greatest number of things to show or send",
    "--name": "a name that the command gives to its subject",
    "--node": "a node by its name",
    "--nodes": "the number of nodes",
    "--output": "the form or the file of what a command prints",
    "--port": "the port of a server",
    "--racks": "the number of racks",
    "--reason": "the reason of a change, or of a dead letter",
    "--request-id": "a request by its id",
    "--seconds": "the seconds to run",
    "--seed": "the seed of random choices",
    "--set": "a value by its name",
    "--since": "the earliest time",
    "--table": "a table by its name",
    "--timeout": "the seconds to wait",
    "--to": "a file to write",
    "--topic": "a topic by its name",
    "--wait": "wait for the effect of a change",
    "-o": "as --output",
    "--user": "a user by its name",
    "--watch": "print again when something has changed",
}
"""Options whose help differs between commands, with the meaning that all of them share."""
BEGINNINGS = frozenset(
    re.findall(
        r"\w+",
        """add append approve assassinate cancel change check choose close create declare decommission delay delete
        describe draw drop enable end enter examine explain fence forget grant hold import install join leave let list
        lower maintain manage merge move pause plant print publish read rebuild release reject remove repair replace
        report require reset resume retry revoke run send set stage show simulate split start stop stream submit take
        truncate unregister update withdraw write""",
    )
)
"""The verbs that a summary may begin with."""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command of the tree with its words; the root has none."""
    left: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while left:
        path, command = left.pop()
        yield path, command
        if hasattr(command, "list_commands"):
            left += [
                (f"{path} {name}".strip(), command.get_command(None, name)) for name in command.list_commands(None)
            ]


TREE = dict(commands())


def options() -> Iterator[tuple[str, Any]]:
    """Yield (path, option) of every shown option."""
    for path, command in TREE.items():
        yield from ((path, one) for one in command.params if one.param_type_name == "option" and not one.hidden)


def test_a_summary_is_a_short_imperative() -> None:
    for path, command in TREE.items():
        summary = " ".join(command.help.split("\n\n")[0].split())
        assert len(summary) <= SUMMARY_MAX, (path, summary)
        assert summary.endswith("."), (path, summary)
        assert summary.split()[0].strip(",").lower() in BEGINNINGS, (path, summary)


def test_an_option_name_has_one_meaning() -> None:
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, option in options():
        for name in (*option.opts, *option.secondary_opts):
            texts[name][f"{option.help} {'' if option.is_flag else option.metavar}"].append(path)
    several = {name: dict(found) for name, found in texts.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in SHARED} == {}
    assert sorted(set(SHARED) - set(several)) == [], "each of these options has one help text now"


def test_a_value_is_not_named_by_a_python_type() -> None:
    unnamed = [(path, option.opts) for path, option in options() if not option.is_flag and not option.metavar]
    assert unnamed == []
    used = {name for _, option in options() for name in option.opts}
    assert set(METAVARS) - used == set(), "no command has these options"


def test_a_choice_shows_its_values() -> None:
    seen = 0
    for path, option in options():
        choices = option.type_descriptor.choices
        if choices:
            seen += 1
            values = [one.value if isinstance(one, Enum) else str(one) for one in choices]
            assert option.metavar.split("|") == [value for value in values if value], (path, option.opts)
    assert seen > 5


def test_help_fits_80_columns_and_shows_no_type() -> None:
    for path, command in TREE.items():
        shown = command.get_help(command.context_class(command, info_name=f"ringlog {path}", terminal_width=WIDTH))
        assert re.findall(r"<\w+>|\{\w+\}|\[\[|[╭│]", shown) == [], path
        assert [line for line in shown.splitlines() if len(line) > WIDTH] == [], path
        assert ("--install-completion" in shown) == (path == "")


def test_arguments_have_one_style() -> None:
    for path, command in TREE.items():
        for argument in command.params:
            if argument.param_type_name == "argument":
                name = usage_name(argument)
                assert re.fullmatch(r"\[?[A-Z][A-Za-z.=|\[\]-]*(\.\.\.)?\]?", name), (path, name)
                assert argument.help, (path, name)


def test_every_root_command_is_in_a_group() -> None:
    grouped = [name for group in GROUPS.values() for name in group]
    assert grouped == list(COMMANDS) == TREE[""].list_commands(None)
    shown = CliRunner().invoke(app, ["--help"], prog_name="ringlog").stdout
    assert [line[:-1] for line in shown.splitlines() if line[:1].isupper() and line.endswith(":")][1:] == list(GROUPS)


def test_old_spellings_are_accepted_and_hidden() -> None:
    shown = {name for path, option in options() for name in (path, *option.opts, *option.secondary_opts)}
    old = {name: path for path, option in options() for name in getattr(option, "old_names", ())}
    assert {"--anew", "--i-made-sure", "--meet", "--most"} <= old.keys() - shown
    assert "--tokens" in options_of(TREE["node run"])
    assert TREE["cluster found"].hidden
    assert not TREE["cluster create"].hidden


def test_an_old_spelling_sets_the_same_value() -> None:
    found = []
    one = typer.Typer(add_completion=False)

    @one.command()
    def verb(count: Annotated[int, typer.Option("--num-tokens", "-t", "--tokens", help="Number.")] = 8) -> None:
        found.append(count)

    for words in (["--num-tokens", "1"], ["--tokens", "2"], ["--tokens=3"], ["-t", "4"], []):
        command = typer.main.get_command(one)
        prepare(command)
        command(words, standalone_mode=False)
    assert found == [1, 2, 3, 4, 8]
    assert command.params[0].opts == ["--num-tokens", "-t"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["nod", "list"], "ringlog node list"), (["cluster", "creat", "shop"], "ringlog cluster create")],
)
def test_a_mistyped_command_gets_the_nearest_name(words: list[str], meant: str) -> None:
    ended = CliRunner().invoke(app, words, prog_name="ringlog")
    assert ended.exit_code == 2
    assert f"Did you mean `{meant}" in ended.stderr


def test_a_mistyped_setting_gets_the_nearest_name() -> None:
    words = ["cluster", "create", "shop", "--bootstrap", "b:1", "--set"]
    ended = [CliRunner().invoke(app, [*words, f"{name}=1"]) for name in ("history_entris", "zzz")]
    assert [one.exit_code for one in ended] == [2, 2]
    assert "unknown_setting: history_entris is not a setting; did you mean history_entries?" in ended[0].stderr
    assert "zzz is not a setting; see ringlog cluster settings" in ended[1].stderr
    detail = "settings: cdc_leeway is not a setting"
    assert explained(EMPTY_STATE, "unknown_setting", detail) == f"{detail}; did you mean cdc_leeway_us?"


def test_a_subcommand_has_a_second_name() -> None:
    first, second = (CliRunner().invoke(app, [name, "quorums", "--rule", "?"]) for name in ("sim", "simulate"))
    assert first.exit_code == second.exit_code == 2
    assert first.stderr == second.stderr
    assert first.stderr.startswith("bad_rule")
    assert "simulate" not in CliRunner().invoke(app, ["--help"]).stdout.split()
