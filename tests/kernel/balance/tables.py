"""Tables for tests of the balancer."""

from __future__ import annotations

from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import CdcOptions, Column, TabletOptions

GIB = 1 << 30


def table_of(full_name: str, options: TabletOptions) -> Table:
    keyspace, name = full_name.split(".")
    columns = (Column("k", "text"),)
    return Table(f"id of {full_name}", keyspace, name, columns, ("k",), (), CdcOptions(), "v", 1, tablets=options)
