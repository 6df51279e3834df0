"""``ringlog cluster acls``: the rights that a kind of process needs at the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ringlog.cli.connection import out
from ringlog.cli.verbs import looks
from ringlog.log.acls import BrokerUser, apply_rules, rules_for
from ringlog.log.topics import admin_client
from ringlog.runtime.context import ClusterContext


@looks
def acls(
    context: ClusterContext,
    kind: Annotated[BrokerUser, typer.Option("--for", help="For what kind of process.")],
    user: Annotated[str, typer.Option("--user", help="Its name at the broker, without `User:`.")],
    apply: Annotated[bool, typer.Option("--apply", help="Give them; needs ALTER of the Kafka cluster.")] = False,
) -> Iterator[Any]:
    """Print the rights that a kind of process needs, as options of `kafka-acls.sh`; with --apply give them."""
    rules = rules_for(kind, context.cluster)
    if apply:
        apply_rules(admin_client(context.bootstrap), user, rules)
    told = {"user": user, "for": kind.value, "cluster": context.cluster, "applied": apply}
    yield told | {"rules": [asdict(rule) for rule in rules]}
    for rule in rules:
        out.print(rule.command(user), markup=False)
