"""Real servers for the whole run: one broker, one Redis, one Spark session, in their own folder.

Tests share the broker and separate their data by ``cluster_name``, the prefix of all topics of a cluster.
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
from ringlog.stack.artifacts import spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    """Return a running stack with session timeouts of 2 s; stop it at the end of the run."""
    with taking_down(plain_stack(tmp_path_factory.mktemp("stack"))) as own:
        yield own.up("quick")


@pytest.fixture
def cluster_name() -> str:
    """Return a unique cluster name."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a local Spark session with the Kafka and Delta connectors, few partitions and no console output."""
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
            .config("spark.jars", ",".join(str(jar) for jar in spark_jars()))
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


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Return a broker that rejects anonymous clients; tests separate their data by cluster names with ``PREFIX``."""
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[AgentsWorld]:
    """Return a new cluster, its agents, and a client."""
    with closing(AgentsWorld(stack, cluster_name, tmp_path)) as made:
        yield made


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    """Return a cluster for a CDC job: the tables of the shop, one node, one generation."""
    with founded_shop(stack.bootstrap_servers, cluster_name) as made:
        yield made


@pytest.fixture
def log(stack: StackInfo, cluster_name: str) -> Iterator[CdcLog]:
    """Return the CDC log of a new cluster."""
    with founded(stack.bootstrap_servers, cluster_name) as made:
        yield CdcLog(made)


@pytest.fixture
def registers(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[RegistersCluster]:
    """Return the agents of a new cluster, and nodes with registers."""
    with opened(RegistersCluster, stack, tmp_path, cluster_name) as made:
        yield made


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Return a command-line user with an empty home."""
    somebody = User(tmp_path)
    yield somebody
    somebody.end()
