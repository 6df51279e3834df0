"""The cost of an ALTER in a large schema, compared with a small schema, in one run.

    python bench/schema.py [TABLES] [--json]

A cluster of ten nodes has TABLES tables (10,000) in ten keyspaces, all with a CDC log. The validation watermark is high
enough that versions are kept. One entry each adds, renames and drops columns of tables all over the schema. *Decided*
is the validator's work including the bytes of the entry; *folded* is the work of every reader. Figures are milliseconds
of processor time, the median and the worst of 300. The status is 1 if the median of both together is 2 ms or more.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from statistics import median

from placement import Author, cluster, uuid_of

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.model.outcome import Accepted, EntryContext, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command
from ringlog.wire.entries import author_entry, decode_entry

NODES, TOKENS, KEYSPACES = 10, 4, 10
TABLES, SMALL, ROUNDS = 10_000, 10, 300
GOAL_MS = 2.0
COLUMNS = (Column("k", "text"), Column("c", "bigint"), Column("v", "text"), Column("w", "map<text, int>"))


def schema(tables: int) -> ClusterState:
    """The cluster, with its tables."""
    author = Author(cluster(NODES, TOKENS))
    for number in range(tables):
        where = f"ks{number % KEYSPACES}", f"t{number}"
        author.append(CreateTable(*where, uuid_of(number, 5), COLUMNS, ("k",), ("c",), CdcOptions(enabled=True)))
    author.append(SettleVerdicts(1_000_000))
    return author.state


def altered(number: int, tables: int) -> Command:
    """The next ALTER: three of one table, then another table."""
    table = number // 3 * 7_919 % tables
    where, name = (f"ks{table % KEYSPACES}", f"t{table}"), f"a{number // 3}"
    if number % 3 == 0:
        return AlterTable(*where, add_columns=(Column(name, "int"),))
    if number % 3 == 1:
        return AlterTable(*where, rename_columns=(ColumnRename(name, f"b{number // 3}"),))
    return AlterTable(*where, drop_columns=(f"b{number // 3}",))


def measured(state: ClusterState, tables: int) -> dict[str, float]:
    """Milliseconds."""
    decided, folded = [], []
    gc.collect()
    gc.disable()
    for number in range(ROUNDS):
        command, epoch = altered(number, tables), state.epoch + 1
        begun = time.process_time()
        decision = decide(state, command, EntryContext(epoch, uuid_of(epoch, 0), epoch))
        ids = (uuid_of(epoch, 0), state.state_id or None, uuid_of(epoch, 1))
        record = author_entry(state.cluster_id, *ids, state.epoch, "bench", epoch, command).data
        middle = time.process_time()
        found = fold(state, decode_entry(record))
        ended = time.process_time()
        assert isinstance(decision, Accepted), decision
        assert found.outcome.kind is OutcomeKind.APPLIED, found.outcome
        state = found.state
        decided.append((middle - begun) * 1000)
        folded.append((ended - middle) * 1000)
    gc.enable()
    both = [one + other for one, other in zip(decided, folded, strict=True)]
    return {"decided": median(decided), "folded": median(folded), "both": median(both), "worst": max(both)}


def main(tables: int, as_json: bool) -> int:
    """Measure both; the exit status."""
    figures = {str(count): measured(schema(count), count) for count in (SMALL, tables)}
    if as_json:
        print(json.dumps(figures))
    else:
        print(f"{'an ALTER, ms':<16}" + "".join(f"{name:>10}" for name in figures[str(tables)]))
        for count, found in figures.items():
            print(f"{int(count):>9,} tables" + "".join(f"{value:>10.3f}" for value in found.values()))
        ratio = figures[str(tables)]["both"] / figures[str(SMALL)]["both"]
        print(f"{ratio:.1f} times that of {SMALL} tables; the goal is {GOAL_MS:.0f} ms")
    return int(figures[str(tables)]["both"] >= GOAL_MS)


if __name__ == "__main__":
    wanted = [int(word) for word in sys.argv[1:] if not word.startswith("--")]
    sys.exit(main(wanted[0] if wanted else TABLES, "--json" in sys.argv))
