"""``ringlog cluster acls``: the rights that a kind of process needs at the broker."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, out, resolve
from ringlog.log.acls import BrokerUser, apply_rules, rules_for
from ringlog.log.topics import admin_client


def acls(
    kind: Annotated[BrokerUser, typer.Option("--for", help="For what kind of process.")],
    user: Annotated[str, typer.Option("--user", help="Its name at the broker, without `User:`.")],
    apply: Annotated[bool, typer.Option("--apply", help="Give them; needs ALTER of the Kafka cluster.")] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print the rights that a kind of process needs, as options of `kafka-acls.sh`; with --apply give them."""
    context = resolve(bootstrap, cluster)
    rules = rules_for(kind, context.cluster)
    if apply:
        apply_rules(admin_client(context.bootstrap), user, rules)
    if as_json:
        told = {"user": user, "for": kind.value, "cluster": context.cluster, "applied": apply}
        typer.echo(json.dumps(told | {"rules": [asdict(rule) for rule in rules]}))
        return
    for rule in rules:
        out.print(rule.command(user), markup=False)
