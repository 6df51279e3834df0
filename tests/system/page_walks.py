"""The pages that are typed into the cluster of the quick start, in their order, and the reasons for the other blocks.

The cluster has the nodes ``n1`` to ``n4`` in three racks, and the table ``shop.orders`` with a CDC log.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.values import Value, field

ELSEWHERE = "needs another machine or service"
FAULT = "needs a fault that the cluster does not have"
ENDLESS = "runs until it is stopped"
PLACEMENT = "names a replica whose node differs from cluster to cluster"


class Walk(Value):
    """A page to type.

    Attributes:
        page: Path below ``docs``.
        given: Commands to type first, each repeated until it succeeds, with the condition that this means.
        left_out: Beginning of a block to its reason.
        is_compared: Whether outputs must be as shown. Otherwise only the exit status counts.
        statuses: Beginning of a block to its exit status, if that is not 0.
    """

    page: str
    given: tuple[tuple[str, str], ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    is_compared: bool = False
    statuses: Mapping[str, int] = field(default_factory=dict)


WALKS = (
    Walk("operate/README.md"),
    Walk(
        "operate/monitoring.md", left_out={"RINGLOG_METRICS_PORT=": ENDLESS, "curl": ELSEWHERE, "promtool": ELSEWHERE}
    ),
    Walk(
        "operate/troubleshooting.md",
        left_out={
            "ringlog operation list\nringlog operation show": FAULT,
            "ringlog node list\ncurl": ELSEWHERE,
            "ringlog agents status\njournalctl": ELSEWHERE,
            "ringlog cdc status\nringlog audit": "needs a CDC job",
            "ringlog cdc forget-versions": FAULT,
        },
    ),
    Walk(
        "operate/settings.md",
        left_out={"ringlog cluster settings": "shows two of its lines", "ringlog cluster create": ELSEWHERE},
    ),
    Walk("operate/audit.md"),
    Walk("operate/rehearse.md", given=(('echo \'{"show": "nodes"}\' >plan.json', "the plan is there"),)),
    Walk("operate/load.md"),
    Walk("operate/move-tokens.md", left_out={"ringlog node rebuild": FAULT}, is_compared=True),
    Walk(
        "operate/zones.md",
        left_out={
            "ringlog zone cancel": FAULT,
            "ringlog zone restart": PLACEMENT,
            "ringlog zone reset fast\n": FAULT,
            "ringlog zone reset fast --admit": FAULT,
        },
    ),
    Walk(
        "operate/schema.md",
        given=(("ringlog ddl <<<'DROP TABLE shop.orders; DROP KEYSPACE shop;'", "the schema is empty"),),
        left_out={"ringlog cdc forget-versions": FAULT, "ringlog ddl change.cql --wait": "applies the same file again"},
        is_compared=True,
    ),
    Walk("build/first-program.md"),
    Walk(
        "build/rows-and-registers.md",
        given=(
            ("ringlog keyspace create moves --replication tablets:1", "the keyspace is there"),
            (
                "ringlog ddl <<'END'\n"
                "CREATE KEYSPACE IF NOT EXISTS shop\n"
                "  WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2};\n"
                "CREATE TABLE IF NOT EXISTS shop.seats (seat text PRIMARY KEY, state text, price double)\n"
                "  WITH cdc = {'enabled': true};\n"
                "CREATE TABLE IF NOT EXISTS moves.orders (id int PRIMARY KEY);\n"
                "END",
                "the tables are there",
            ),
            ("ringlog data write moves.orders first taken", "the tablets are placed"),
        ),
    ),
    Walk(
        "operate/tablets.md",
        given=(
            ("ringlog keyspace create logs --replication tablets:3", "the keyspace is there"),
            ("echo 'CREATE TABLE logs.events (id int PRIMARY KEY);' | ringlog ddl", "the table is there"),
            ("ringlog tablet list logs.events", "the tablets are placed"),
        ),
        left_out={"ringlog tablet move": PLACEMENT},
    ),
    Walk("operate/dead-letters.md", left_out={"ringlog cdc dead-letters list": "no letter has its number"}),
    Walk(
        "deploy/permissions.md",
        left_out={
            "ringlog cluster create": ELSEWHERE,
            "RINGLOG_KAFKA_SASL_PASSWORD": ELSEWHERE,
            "ringlog cluster acls --for validator": ELSEWHERE,
            "ringlog cluster acls --for node": ELSEWHERE,
        },
        is_compared=True,
    ),
    Walk(
        "build/cdc-topic.md",
        left_out={
            "ringlog cdc tail\n": ENDLESS,
            "ringlog cdc tail --progress": ENDLESS,
            "ringlog cdc tail --table shop.seats --column": ENDLESS,
            "ringlog cdc apply": ENDLESS,
        },
    ),
)

OFFLINE = (
    Walk(
        "internals/histories.md",
        is_compared=True,
        statuses={"ringlog sim check": 1},
    ),
    Walk(
        "internals/quorums.md",
        left_out={"ringlog sim quorums FILE": "names no file"},
        is_compared=True,
        statuses={"ringlog sim quorums --operations join --rule": 1},
    ),
    Walk("internals/placement-simulator.md", is_compared=True),
    Walk(
        "deploy/tls.md",
        left_out={
            "install -d": ELSEWHERE,
            "ringlog node run": ELSEWHERE,
            "ID=474fd402": ELSEWHERE,
            "ID=$(uuidgen)": "continues a folder that has another authority",
            "ringlog node update": ELSEWHERE,
        },
        is_compared=True,
    ),
    Walk(
        "operate/import.md",
        left_out={
            "ringlog import cassandra --host": ELSEWHERE,
            "ringlog node run": ELSEWHERE,
            "ringlog import cassandra --recording shop.json": ELSEWHERE,
            "ringlog plan stage": ELSEWHERE,
        },
        is_compared=True,
    ),
    Walk(
        "internals/simulator.md",
        left_out={
            "ringlog sim run --seed 1..2000": "takes minutes",
            "ringlog sim replay": "names no file",
            "ringlog sim mutants": "names no bug",
        },
    ),
)
"""Pages that need no cluster. They are typed in the root of the repository's copy."""

PROGRAMS = (
    *(("build/python-client.md", number) for number in range(8)),
    *(("build/errors-and-retries.md", number) for number in range(4)),
    ("build/rows-and-registers.md", 0),
    ("build/rows-and-registers.md", 1),
    ("build/rows-and-registers.md", 2),
    ("build/mutations.md", 0),
    ("build/change-topics.md", 0),
    ("build/cdc-topic.md", 0),
    ("build/spark-reader.md", 0),
)
"""Python blocks that run against the cluster, by page and number, after the pages have been typed."""

NOT_RUN = {
    ("build/lake.md", 0): "needs a lake; tests/system/test_cdc_lake.py",
    ("build/lake.md", 1): "needs a lake; tests/system/test_cdc_lake.py",
    ("build/spark-reader.md", 1): "runs as long as its query; tests/system/test_cdc_source.py",
    ("build/spark-reader.md", 2): "needs a Connect server; tests/cdc/test_session.py",
    ("build/own-node.md", 0): "is the shape of a store; tests/system/test_participant.py runs examples/store.py",
    ("build/own-node.md", 1): "is run by tests/client/test_build_pages.py",
    ("build/change-topics.md", 1): "is run by tests/client/test_build_pages.py",
    ("build/testing.md", 0): "is run by tests/client/test_build_pages.py",
    ("build/testing.md", 1): "is run by tests/client/test_build_pages.py",
    ("build/script-answers.md", 0): "is run by tests/client/test_scripted_answers.py",
    ("build/producers.md", 0): "is run by tests/system/test_producers_page.py",
    ("deploy/permissions.md", 0): "is a function for another process",
    ("internals/fuzzing.md", 0): "declares a target",
    ("internals/histories.md", 0): "is a function for a store",
}
"""Other Python blocks, with the test that runs them or the reason why none does."""

NOT_TYPED = {
    "build/cdc-job.md": "needs a broker that checks permissions, and a job; tests/system/test_cdc_fence.py",
    "build/debezium.md": "needs a connector's topic; tests/system/test_cdc_debezium.py",
    "build/install.md": "makes an environment; tests/system/test_installed_walk.py",
    "build/lake.md": "needs a job; tests/system/test_cdc_lake.py",
    "build/own-node.md": "is a program; tests/system/test_participant.py",
    "build/python-client.md": "is a program; tests/client/test_build_pages.py",
    "build/spark.md": "needs a job; tests/system/test_cdc_standalone.py",
    "build/testing.md": "needs processes with delays; tests/system/test_delays.py",
    "concepts/tablets.md": "is the beginning of operate/tablets.md",
    "concepts/zones.md": "is the beginning of operate/zones.md",
    "demo.md": "is typed by `.ci/run`",
    "deploy/README.md": ELSEWHERE,
    "deploy/brokers.md": "needs three brokers; tests/system/test_three_brokers.py",
    "deploy/containers.md": "needs podman; tests/containers/test_containers.py",
    "deploy/encryption-at-rest.md": "needs an empty disk",
    "deploy/kubernetes.md": "needs a Kubernetes; tests/containers/test_kubernetes.py",
    "deploy/redis.md": ELSEWHERE,
    "deploy/systemd.md": ELSEWHERE,
    "install.md": "is typed by `make setup` and tests/stack",
    "internals/event-orders.md": "takes minutes: make explore",
    "internals/extending.md": "rewrites files; tests/cli/test_docs.py compares them",
    "internals/faults.md": "takes an hour: make faults",
    "internals/fuzzing.md": "takes minutes: make fuzz",
    "internals/generations.md": "takes minutes: make explore",
    "operate/add-a-node.md": "is a part of the quick start",
    "operate/backup-and-recovery.md": "needs a lost topic; tests/system/test_recovery.py",
    "operate/cdc-writers.md": "needs a job; tests/system/test_cdc_fence.py, test_cdc_clocks.py",
    "operate/console.md": "serves until it is stopped; tests/system/test_console.py",
    "operate/operations.md": FAULT,
    "operate/plans.md": "needs agents with keys; tests/system/test_plans_page.py",
    "operate/principals.md": "needs agents with keys; tests/system/test_request_keys.py",
    "operate/remove-a-node.md": "needs nodes to lose; tests/system/test_movement_commands.py",
    "operate/replace-a-node.md": "needs a dead node; tests/system/test_movement_commands.py",
    "operate/uninstall.md": "removes the cluster; tests/system/test_starting_over.py",
    "operate/upgrade.md": "needs two releases",
}
"""Pages whose blocks are not typed, and why, or which test does the same."""
