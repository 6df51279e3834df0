"""The ACLs of each kind of process: only agents write the log, clusters share nothing, and the printed ACLs equal the
granted ones.
"""

from __future__ import annotations

import itertools
import json

import pytest
from confluent_kafka.admin import AclPermissionType, ResourcePatternType
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.values import is_name, replace
from ringlog.log.kafka.acl_check import FoundAcl, compare
from ringlog.log.kafka.acls import NEEDS, BrokerRule, BrokerUser, GivenNames, binding, rules_for
from ringlog.log.kafka.permissions import next_principal, principals_among
from ringlog.log.kafka.topics import TOPICS
from ringlog.protocol.roles import ROLES
from ringlog.runtime.kafka.config import READER_GROUP

K = BrokerUser
WHERE = ("--bootstrap", "127.0.0.1:1", "--cluster", "shop")
GIVEN = GivenNames(("others",), "group", "name")
OPTIONS = ("--topic", "others", "--group", "group", "--name", "name")


def writers(suffix: str) -> set[BrokerUser]:
    return {kind for kind, needs in NEEDS.items() if suffix in needs.topics.get("write", ())}


def readers(suffix: str) -> set[BrokerUser]:
    return {kind for kind, needs in NEEDS.items() if suffix in needs.topics.get("read", ())}


def test_each_topic_has_its_own_writers() -> None:
    assert writers("metadata") == {K.validator, K.agent}
    assert writers("results") == {K.validator}
    assert writers("acks") == {K.node, K.agent}
    assert writers("load") == {K.node}
    assert writers("cdc") == {K.cdc_writer}
    assert writers("dead-letters") == {K.cdc_writer, K.resender, K.importer}
    assert writers("mutations") == {K.client, K.resender, K.importer}
    assert all(writers(spec.suffix) for spec in TOPICS)


def test_rows_have_few_readers() -> None:
    assert readers("mutations") == {K.agent, K.node, K.operator, K.cdc_writer, K.auditor}
    assert readers("cdc") == {K.cdc_writer, K.cdc_reader, K.exporter, K.auditor}
    assert readers("requests") == {K.validator}


def test_groups_and_fences_belong_to_one_role() -> None:
    named = [group for needs in NEEDS.values() for group in needs.groups]
    assert sorted(named) == sorted(ROLES)
    taken = [one for needs in NEEDS.values() for one in needs.transactions]
    assert len(set(taken)) == len(taken)
    assert {one.resource for one in rules_for(K.client, "shop") if one.operation != "describe"} == {"topic"}


@pytest.mark.parametrize("other", ["shop.eu", "shop-export", "shop.validator", "sho", "shop-dead-letters"])
def test_clusters_with_a_common_prefix_share_no_permission(other: str) -> None:
    def resources(cluster: str) -> set[tuple[str, str]]:
        rules = [
            rule for kind in K for rule in rules_for(kind, cluster, GivenNames((f"{cluster}!",), f"{cluster}!", "1"))
        ]
        assert not any(rule.begins for rule in rules)
        return {(rule.resource, rule.name) for rule in rules if rule.name != READER_GROUP}

    assert resources("shop") & resources(other) == set()
    assert {one.operation for kind in K for one in rules_for(kind, "a", GIVEN) if one.name == READER_GROUP} == {
        "describe"
    }


@pytest.mark.parametrize("kind", BrokerUser)
def test_printed_acls_equal_granted_acls(kind: BrokerUser) -> None:
    rules = rules_for(kind, "shop", GIVEN)
    assert len(set(rules)) == len(rules)
    words = ["cluster", "acls", "--for", kind.value, "--user", "u", *OPTIONS, *WHERE]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (told["for"], told["applied"], len(told["rules"])) == ([kind.value], False, len(rules))
    assert CliRunner().invoke(app, words).stdout.splitlines() == [one.command("u") for one in rules]
    for one in rules:
        made = binding("u", one)
        assert (made.principal, made.permission_type, made.name) == ("User:u", AclPermissionType.ALLOW, one.name)
        assert made.resource_pattern_type is ResourcePatternType.LITERAL


@pytest.mark.parametrize(
    ("kind", "missing"), [(K.exporter, "--topic"), (K.importer, "--topic"), (K.exporter, "--name")]
)
def test_a_kind_demands_the_names_that_its_user_chooses(kind: BrokerUser, missing: str) -> None:
    given = OPTIONS[:2] * (missing != "--topic")
    ended = CliRunner().invoke(app, ["cluster", "acls", "--for", kind.value, "--user", "u", *given, *WHERE])
    assert (ended.exit_code, missing in ended.output) == (2, True)


def test_acls_have_the_format_of_the_kafka_tool() -> None:
    said = [one.command("u") for one in rules_for(K.agent, "shop")]
    assert "--add --allow-principal 'User:u' --operation DescribeConfigs --topic 'shop.metadata'" in said
    assert "--add --allow-principal 'User:u' --operation Write --topic 'shop.metadata'" in said
    assert "--add --allow-principal 'User:u' --operation Write --transactional-id 'shop.publisher'" in said
    limited = BrokerRule("cluster", "kafka-cluster", "alter", host="10.0.0.1")
    assert limited.command("u", "remove") == (
        "--remove --allow-principal 'User:u' --allow-host 10.0.0.1 --operation Alter --cluster"
    )


# The comparison with a broker.

CLIENT = rules_for(K.client, "shop")


def at_broker(*rules: BrokerRule, user: str = "u", denies: bool = False) -> tuple[FoundAcl, ...]:
    return tuple(FoundAcl(user, one, denies) for one in rules)


@pytest.mark.parametrize("kind", BrokerUser)
def test_exactly_the_rules_are_neither_missing_nor_surplus(kind: BrokerUser) -> None:
    rules = rules_for(kind, "shop", GIVEN)
    found = compare(rules, at_broker(*rules), "shop")
    assert (found.missing, found.surplus) == ((), ())
    assert compare(rules, (), "shop").missing == rules


def test_each_missing_rule_is_found() -> None:
    for rule in CLIENT:
        rest = [one for one in CLIENT if one != rule]
        assert compare(CLIENT, at_broker(*rest), "shop").missing == (rule,)


@pytest.mark.parametrize(
    "surplus",
    [
        BrokerRule("topic", "shop.metadata", "write"),
        BrokerRule("topic", "shop.metadata", "all"),
        BrokerRule("topic", "shop.cdc", "describe"),
        BrokerRule("topic", "shop.metadata", "read", begins=True),
        BrokerRule("topic", "shop.", "describe", begins=True),
        BrokerRule("topic", "", "read", begins=True),
        BrokerRule("topic", "*", "describe"),
        BrokerRule("topic", "shop.results", "delete", host="10.0.0.1"),
        BrokerRule("group", "shop.validator", "read"),
        BrokerRule("group", READER_GROUP, "read"),
        BrokerRule("transactional_id", "shop.publisher", "describe"),
        BrokerRule("transactional_id", "shop/export/", "write", begins=True),
        BrokerRule("cluster", "kafka-cluster", "alter"),
    ],
)
def test_surplus_acls_are_found(surplus: BrokerRule) -> None:
    for user in ("u", "*"):
        acl = FoundAcl(user, surplus)
        rules = rules_for(K.exporter, "shop", GIVEN) if "export" in surplus.name else CLIENT
        assert compare(rules, (*at_broker(*rules), acl), "shop").surplus == (acl,)


@pytest.mark.parametrize(
    "harmless",
    [
        BrokerRule("topic", "shop.metadata", "describe"),
        BrokerRule("topic", "orders", "all"),
        BrokerRule("topic", "shop.eu.metadata", "write"),
        BrokerRule("group", "shop.of.ours", "read"),
        BrokerRule("cluster", "kafka-cluster", "idempotent_write"),
    ],
)
def test_acls_without_effect_on_the_cluster_are_not_surplus(harmless: BrokerRule) -> None:
    assert compare(CLIENT, at_broker(*CLIENT, harmless), "shop").surplus == ()


def test_acls_count_by_their_effect() -> None:
    by_host = [replace(one, host="10.0.0.1") for one in CLIENT]
    assert compare(CLIENT, at_broker(*by_host), "shop").missing == ()
    everything = [BrokerRule(kind, "*", "all") for kind in ("topic", "group")]
    found = compare(CLIENT, at_broker(*everything), "shop")
    assert (found.missing, len(found.surplus)) == ((), 2)
    read = BrokerRule("topic", "shop.metadata", "read")
    for denied in (read, replace(read, operation="all"), replace(read, name="shop.", begins=True)):
        acls = (*at_broker(*CLIENT), *at_broker(denied, user="*", denies=True))
        assert read in compare(CLIENT, acls, "shop").missing
        assert compare(CLIENT, acls, "shop").surplus == ()


# Names of principals: the name alone identifies the writer.


NAMES = ("a", "a.b", "b", "b.1", "1", "a-b", "a.b.1", "a_b.1.2")


def test_no_two_writers_share_a_principal() -> None:
    """With dots as separators, writer b.1 of cluster a and writer 1 of cluster a.b would share one principal and
    password.
    """
    pairs = list(itertools.product(NAMES, NAMES))
    assert all(is_name(name) and "/" not in name for name in NAMES)
    assert not is_name("a/b")
    made = {pair: next_principal((), *pair) for pair in pairs}
    assert len(set(made.values())) == len(pairs)
    for pair, principal in made.items():
        assert [other for other in pairs if principals_among([principal], *other)] == [pair]


def test_a_writer_keeps_its_ids_and_gets_a_new_number() -> None:
    found = ["ringlog/shop/spark/10", "ringlog.shop.spark.2", "ringlog/shop/spark/3", "ringlog.shop.spark2.7", "admin"]
    had = principals_among([*found, *found], "shop", "spark")
    assert had == ("ringlog.shop.spark.2", "ringlog/shop/spark/3", "ringlog/shop/spark/10")
    assert next_principal(had, "shop", "spark") == "ringlog/shop/spark/11"
    assert principals_among(["ringlog/shop/spark/01", "ringlog/shop/spark/"], "shop", "spark") == ()
