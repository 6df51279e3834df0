"""The ACLs of each kind of process: only agents write the log, and the printed ACLs equal the granted ones."""

from __future__ import annotations

import itertools
import json

import pytest
from confluent_kafka.admin import AclPermissionType, ResourcePatternType
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.values import is_name
from ringlog.log.kafka.acls import NEEDS, BrokerUser, _binding, rules_for
from ringlog.log.kafka.permissions import next_principal, principals_among
from ringlog.log.kafka.topics import TOPICS

WHERE = ("--bootstrap", "127.0.0.1:1", "--cluster", "shop")


def writers(suffix: str) -> set[BrokerUser]:
    return {kind for kind, needs in NEEDS.items() if suffix in needs.writes}


def test_each_topic_has_its_own_writers() -> None:
    assert writers("metadata") == {BrokerUser.validator, BrokerUser.agent}
    assert writers("results") == {BrokerUser.validator}
    assert writers("acks") == writers("load") == {BrokerUser.node}
    assert writers("cdc") == writers("dead-letters") == {BrokerUser.cdc_writer}
    assert writers("mutations") == {BrokerUser.client}
    assert all(writers(spec.suffix) for spec in TOPICS)
    assert {suffix for needs in NEEDS.values() for suffix in needs.writes} == {spec.suffix for spec in TOPICS}


def test_a_client_is_in_no_group_and_takes_no_role() -> None:
    rules = rules_for(BrokerUser.client, "shop")
    assert {(one.resource, one.operation) for one in rules if one.resource != "topic"} == {("group", "describe")}
    assert {one.operation for one in rules if one.begins} == {"describe", "describe_configs", "read"}


@pytest.mark.parametrize("kind", BrokerUser)
def test_printed_acls_equal_granted_acls(kind: BrokerUser) -> None:
    rules = rules_for(kind, "shop")
    said = CliRunner().invoke(app, ["cluster", "acls", "--for", kind.value, "--user", "u", *WHERE, "--json"])
    told = json.loads(said.stdout)
    assert (told["for"], told["applied"], len(told["rules"])) == (kind.value, False, len(rules))
    plain = CliRunner().invoke(app, ["cluster", "acls", "--for", kind.value, "--user", "u", *WHERE])
    assert plain.stdout.splitlines() == [one.command("u") for one in rules]
    for one in rules:
        made = _binding("u", one)
        assert (made.principal, made.permission_type, made.name) == ("User:u", AclPermissionType.ALLOW, one.name)
        assert (made.resource_pattern_type is ResourcePatternType.PREFIXED) == one.begins


def test_acls_have_the_format_of_the_kafka_tool() -> None:
    said = [one.command("u") for one in rules_for(BrokerUser.agent, "shop")]
    reads = "--topic shop. --resource-pattern-type prefixed"
    assert f"--add --allow-principal 'User:u' --operation DescribeConfigs {reads}" in said
    assert "--add --allow-principal 'User:u' --operation Write --topic shop.metadata" in said
    prefixed = "--transactional-id shop. --resource-pattern-type prefixed"
    assert f"--add --allow-principal 'User:u' --operation Write {prefixed}" in said


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
