"""``ringlog cluster``: create and choose clusters, and show or change their settings, features and ACLs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog import FEATURES
from ringlog.cache.redis_url import redis_address
from ringlog.cli import help as help_texts
from ringlog.cli.cluster import certificates as cluster_certificates
from ringlog.cli.cluster import contexts as cluster_use
from ringlog.cli.cluster import removal
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, broker_of, fail, out, report_replay, resolve
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command
from ringlog.cli.shared.tables import show_table
from ringlog.client.creation.creation import ClusterCreation, create_cluster, repaired
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.cluster.features import EnableFeature, RequireFeature
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.values import asdict
from ringlog.log.kafka.acl_check import AclDifference, compare, found_acls
from ringlog.log.kafka.acls import BrokerUser, GivenNames, NameMissing, apply_rules, rules_for
from ringlog.log.kafka.topics import admin_client
from ringlog.operator.answers import setting_hint
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.protection import missing_protection
from ringlog.operator.views import views
from ringlog.runtime.context import ClusterContext, current_cluster, store_cluster, stored_id
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.runtime.kafka.config import current as kafka_config
from ringlog.runtime.trust import TRUST_VARIABLE
from ringlog.runtime.trust import current as current_trust


def _kind_of(text: str) -> BrokerUser:
    try:
        return BrokerUser(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:40]!r} is not one of {', '.join(BrokerUser)}") from None


@view_command
def acls(
    context: ClusterContext,
    kinds: Annotated[
        list[str],
        typer.Option("--for", help=f"Kind of process: {', '.join(BrokerUser)}. May be repeated."),
    ],
    user: Annotated[str, typer.Option("--user", help="Broker user of the process, without `User:`.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Topic that the exporter writes or the importer reads. May be repeated."),
    ] = None,
    group: Annotated[str, typer.Option("--group", help="Consumer group of a reader or of the importer.")] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the export, or instance of the import.")] = "",
    apply: Annotated[bool, typer.Option("--apply", help="Create the ACLs. Needs ALTER on the Kafka cluster.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the broker. Needs DESCRIBE on the Kafka cluster.")
    ] = False,
) -> Iterator[Any]:
    """Print the ACLs that kinds of processes need.

    The output is a list of `kafka-acls.sh` commands. `--apply` creates the ACLs. `--check` reports missing and surplus
    ACLs of the user and fails.
    """
    try:
        given = GivenNames(tuple(topic or ()), group, name)
        rules = tuple(
            dict.fromkeys(rule for kind in map(_kind_of, kinds) for rule in rules_for(kind, context.cluster, given))
        )
    except NameMissing as error:
        fail("bad_usage", str(error), 2)
    admin = admin_client(context.bootstrap)
    if apply:
        apply_rules(admin, user, rules)
    if check:
        _check_acls(compare(rules, found_acls(admin, user), context.cluster), user, context.bootstrap)
    facts = {"user": user, "for": [*kinds], "cluster": context.cluster, "applied": apply, "checked": check}
    yield facts | {"rules": [asdict(rule) for rule in rules]}
    for rule in rules:
        out.print(rule.command(user), markup=False)


def _check_acls(found: AclDifference, user: str, bootstrap: str) -> None:
    """End the command with status 1 if the user has not exactly the permissions of the kind."""
    tool = f"kafka-acls.sh --bootstrap-server {bootstrap} "
    remove = [tool + acl.rule.command(acl.user, "remove") for acl in found.surplus]
    if found.missing:
        text = f"{user} lacks {len(found.missing)} ACLs, or an ACL denies them; {len(remove)} ACLs are surplus"
        fail("acl_missing", text, ways_out=[*(tool + rule.command(user) for rule in found.missing), *remove])
    if remove:
        fail("acl_surplus", f"{user} has {len(remove)} ACLs that it does not need", ways_out=remove)


app = typer.Typer(no_args_is_help=True)
cluster_use.register(app)
cluster_certificates.register(app)
removal.register(app)
app.command("acls")(acls)
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting of the new cluster. May be repeated.")
]


def parse_settings(given: list[str] | None) -> tuple[tuple[str, int], ...]:
    """Return ``NAME=VALUE`` options as pairs; exit status 2 if a name is unknown or a value is not a number."""
    pairs = []
    for item in given or []:
        name, _, value = item.partition("=")
        if name not in SETTINGS:
            fail("unknown_setting", f"{name} is not a setting{setting_hint(name)}", 2)
        try:
            pairs.append((name, int(value)))
        except ValueError:
            fail("bad_setting", f"{item}: expected NAME=NUMBER", 2)
    return tuple(pairs)


@app.command("found", hidden=True)
@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Name of the new cluster, the prefix of its topics.")],
    settings: Setting = None,
    replication: Annotated[
        int | None,
        typer.Option("--kafka-replication", "--replication", help=help_texts.KAFKA_REPLICATION, min=1),
    ] = None,
    ignore_remains: Annotated[
        bool,
        typer.Option(
            "--replace-lost",
            "--anew",
            help="Create it even if a cluster of this name lost its log. That cluster cannot be recovered.",
        ),
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="RINGLOG_INSECURE",
            help="Allow brokers that other machines reach without TLS, login and certificates.",
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Create a cluster, and use it in later commands.

    Creates the topics, appends the initial entry and reads it back. Topics have 3 copies on three brokers and 1 copy on
    one broker; pass --kafka-replication on other numbers. An existing cluster is not changed, and the cluster in use
    stays in use.
    """
    broker = broker_of(bootstrap)
    brokers = broker.bootstrap
    if broker.redis:
        redis_address(broker.redis)
    given = dict(parse_settings(settings))
    if not insecure:
        _check_protection(brokers)
    stored = stored_id(brokers, name)
    creation = create_cluster(
        brokers,
        name,
        given,
        replication=replication,
        stored_id=stored,
        ignore_remains=ignore_remains,
        on_progress=report_replay,
    )
    before = current_cluster()
    is_in_use = creation.here or before is None or (before.bootstrap, before.cluster) == (brokers, name)
    try:
        _print_created(creation, brokers, as_json, is_in_use)
    finally:  # The cluster exists, and this was printed, even if it cannot be stored here.
        files = {"kafka_config": os.environ.get(VARIABLE, ""), "trust_config": os.environ.get(TRUST_VARIABLE, "")}
        context = ClusterContext(brokers, name, broker.redis, cluster_id=creation.cluster_id, **files)
        store_cluster(context, is_in_use=is_in_use)
    if creation.ignored:
        change = " ".join(f"{key}={given[key]}" for key in creation.ignored)
        fail("settings_ignored", f"the cluster exists with other settings: ringlog cluster set {change}")


def _check_protection(brokers: str) -> None:
    """End the command if other machines can reach the brokers without TLS, login or certificates."""
    if missing := missing_protection(brokers, kafka_config().security, current_trust()):
        ways = ["Pass --kafka-config and --trust-config (ringlog cluster certificates makes the files), or --insecure."]
        fail("unprotected_cluster", f"other machines can reach {brokers}: {', '.join(missing)}", ways_out=ways)


def _print_created(creation: ClusterCreation, brokers: str, as_json: bool, is_in_use: bool) -> None:
    if as_json:
        facts = {"cluster": creation.name, "cluster_id": creation.cluster_id, "founded_here": creation.here}
        typer.echo(json.dumps(facts | {"copies": creation.copies, "in_use": is_in_use}))
        return
    if creation.here:
        out.print(
            Text.assemble("cluster ", (creation.name, "bold"), f" created on {brokers}, id {creation.cluster_id}")
        )
    else:
        out.print(Text.assemble("cluster ", (creation.name, "bold"), f" exists already, id {creation.cluster_id}"))
    one = "1 copy: a broker that loses its disk loses the cluster"
    out.print(f"each record has {one if creation.copies == 1 else f'{creation.copies} copies'}")
    if not is_in_use:
        out.print(
            f"another cluster stays in use. To use this one: ringlog cluster use {creation.name} --bootstrap {brokers}"
        )


@app.command("repair-topics")
def repair_topics_command(
    replication: Annotated[
        int | None,
        typer.Option("--kafka-replication", "--replication", help=help_texts.KAFKA_REPLICATION, min=1),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Create missing topics and set required settings.

    New topics get as many copies as the log has. Records of a lost topic stay lost. `ringlog recover` rebuilds the log
    itself.
    """
    context = resolve(bootstrap, cluster)
    changed = repaired(context.bootstrap, context.cluster, replication)
    if as_json:
        typer.echo(json.dumps(changed))
        return
    show_table(("topic", "repaired"), sorted(changed.items()), "all topics exist and have the required settings")


@app.command("require-feature")
@change_command
def require_feature(
    feature: Annotated[str, typer.Argument(help="Name of the feature. No member needs to support it yet.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw the requirement of a feature that is not enabled.")
    ] = False,
) -> Intent:
    """Require a feature of nodes that register, join or return.

    Members that lack it keep running until they are upgraded. `ringlog status` shows which members lack it.
    """
    return named(RequireFeature(feature, not withdraw))


@app.command("enable-feature")
@change_command
def enable_feature(
    feature: Annotated[str, typer.Argument(help="Name of the feature. Every member must support it.")],
) -> Intent:
    """Enable a feature permanently.

    Nodes without it can neither register nor join afterwards.
    """
    return named(EnableFeature(feature))


@app.command("features")
@view_command
def features_command(context: ClusterContext) -> Iterator[Any]:
    """List features, and the members that lack them.

    The list has required and enabled features, those that members support, and those of this release of the command
    line.
    """
    found = views.features(newest(context), FEATURES)
    yield found
    rows = (
        (row["name"], str(row["required"] or "-"), str(row["enabled"] or "-"), ", ".join(row["lacked_by"]) or "-")
        for row in found
    )
    show_table(("feature", "required at epoch", "enabled at epoch", "lacked by"), rows)


@app.command("set")
@change_command
def set_command(
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="New values of settings.")],
) -> Intent:
    """Change settings of the cluster.

    `ringlog cluster settings` lists them.
    """
    return named(ChangeSettings(tuple(sorted(dict(parse_settings(settings)).items()))))


@app.command("settings")
@view_command
def settings_command(context: ClusterContext) -> Iterator[Any]:
    """List all settings of the cluster with unit and meaning."""
    values = views.settings(newest(context))
    yield values
    rows = ((name, str(value), SETTINGS[name].unit, SETTINGS[name].meaning) for name, value in values.items())
    show_table(("setting", "value", "unit", "meaning"), rows)
