"""A clock was ahead, at a real broker: commands name its effects and revert them as far as no row was appended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.system.agents_world import AgentsWorld
from tests.system.cdc_world import World, now_us, write
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.log.kafka.topic_state import newest_append
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.stack import StackInfo

pytestmark = pytest.mark.system
HOUR_US = 3_600_000_000
YEAR_US = 365 * 24 * HOUR_US


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[World]:
    """Return a cluster with a validator; its second generation, and a writer's lease, are a year ahead."""
    with closing(AgentsWorld(stack, cluster_name, tmp_path)) as agents:
        agents.start("validator")
        made = World(stack.bootstrap_servers, cluster_name, agents.client.replica, agents.client.direct)
        made.join("n1", (0,), now_us() - HOUR_US)
        made.schema()
        made.join("n2", (1_000,), now_us() + YEAR_US)
        made.apply(RegisterCdcWriter("spark", "i1"))
        low = made.state.writers["spark"].low_watermark
        made.apply(AdvanceCdcWriter("spark", "i1", now_us() + 2 * YEAR_US, low))
        yield made


def said(shop: World, *words: str) -> tuple[int, str]:
    """Return exit status and output of a command."""
    where = ("--bootstrap", shop.bootstrap, "--cluster", shop.cluster)
    result = CliRunner().invoke(app, [*words, *where])
    return result.exit_code, result.output


def test_effects_of_a_fast_clock_are_reverted(shop: World) -> None:
    first, far = shop.state.generations
    admin, mutations = admin_client(shop.bootstrap), topic_name(shop.cluster, "mutations")
    assert newest_append(admin, mutations) is None
    shop.send([write("a", 1)])
    appended = newest_append(admin, mutations)
    assert appended is not None
    assert abs(appended - now_us()) < HOUR_US

    code, output = said(shop, "status", "--json")
    told = "\n".join(json.loads(output)["clocks"])
    assert code == 0
    assert f"{far.id} starts at" in told
    assert "CDC writer spark has a write lease until" in told
    lower = ("cdc", "lower", "--writer", "spark", "--reason", "NTP was off", "--by", "ada")
    withdraw = ("cdc", "withdraw", far.id, "--reason", "NTP was off", "--by", "ada")
    assert "writer_not_fenced" in said(shop, *lower)[1]
    shop.apply(FenceCdcWriter("spark", "i1", (), "its clock was ahead"))
    assert "generation_in_use" in said(shop, *withdraw)[1]

    assert "writes_appended" in said(shop, *lower, "--to", str(appended))[1], "that write may have been routed"
    code, output = said(shop, *lower)
    assert code == 0, output
    leeway = 5_000_000
    assert shop.state.writers["spark"].horizon == appended + leeway + 1
    code, output = said(shop, *withdraw)
    assert code == 0, output
    assert [found.id for found in shop.state.generations] == [first.id]
    assert shop.state.prepared is not None, "n2 needs streams"
    code, output = said(shop, "cdc", "withdraw", first.id, "--reason", "no")
    assert (code, "writes_appended" in output) == (1, True), output
    assert json.loads(said(shop, "status", "--json")[1])["clocks"] == []
