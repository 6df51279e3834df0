"""The real things, once for the whole run: one broker, one Redis, one Spark session, in a folder of their own.

Tests share the broker and keep apart by ``cluster_name``: every topic of a cluster carries its name as a prefix.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ending import stopping, taking_down
from tests.plain_stack import plain_stack
from tests.system.agents_world import AgentsWorld
from tests.system.cdc_log import CdcLog
from tests.system.cdc_world import World, founded, founded_shop
from tests.system.guarded_kafka import Guarded, guarded_kafka
from tests.system.nodes_world import opened
from tests.system.registers_cluster import RegistersCluster
from tests.system.user import User

from ringlog.stack import StackInfo
from ringlog.stack.artifacts import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    """A running stack with 2 s session time-outs; stopped at the end of the run."""
    with taking_down(plain_stack(tmp_path_factory.mktemp("stack"))) as own:
        yield own.up("quick")


@pytest.fixture
def cluster_name() -> str:
    """A cluster name that nobody else has."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session with the connectors of Kafka and Delta, few partitions and no console noise."""
    from pyspark.sql import SparkSession
    from tests.system.spark_cluster import QUICK

    from ringlog.stack import java
    from ringlog.stack.java import SPARK
    from ringlog_cdc.lake import delta

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        with stopping(
            SparkSession.builder.master("local[2]")
            .appName("ringlog-tests")
            .config("spark.jars", ",".join(str(jar) for jar in (*jars("spark"), *jars("lake"))))
            .config(map=delta.SETTINGS)
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", " ".join((QUICK, *java.options(SPARK))))
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        ) as session:
            yield session


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker where nobody does anything without logging in."""
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[AgentsWorld]:
    """A new cluster, its agents, and a client."""
    with closing(AgentsWorld(stack, cluster_name, tmp_path)) as made:
        yield made


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    """A cluster for a CDC job: the tables of the shop, one node, one generation."""
    with founded_shop(stack.bootstrap_servers, cluster_name) as made:
        yield made


@pytest.fixture
def log(stack: StackInfo, cluster_name: str) -> Iterator[CdcLog]:
    """The CDC log of a founded cluster."""
    with founded(stack.bootstrap_servers, cluster_name) as made:
        yield CdcLog(made)


@pytest.fixture
def registers(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[RegistersCluster]:
    """Agents of a new cluster, and nodes with registers."""
    with opened(RegistersCluster, stack, tmp_path, cluster_name) as made:
        yield made


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody at a command line with a home of their own."""
    somebody = User(tmp_path)
    yield somebody
    somebody.end()
