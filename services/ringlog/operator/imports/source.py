"""Reading of a running Cassandra or ScyllaDB cluster over CQL, with DataStax's driver (extra ``audit``).

Only the given node is asked, and only its system tables are read. Nodes are read before and after the schema, so a
recording never mixes two topologies. The driver's own types become JSON values here; ``recording`` checks them.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

from ringlog.extras import explained
from ringlog.files import INPUT_BYTES_MAX
from ringlog.kernel.values import Value
from ringlog.operator.imports.recording import (
    NODE_TABLES,
    PEERS_V2,
    ROWS_MAX,
    SCYLLA,
    TABLES,
    BadSource,
    SourceRecording,
    recording_of,
)

TIMEOUT_S: Final = 10.0
PAGE_ROWS: Final = 1_000
_PROTOCOL: Final = 4
"""The newest version of the native protocol that every supported release has."""

Rows = dict[str, list[dict[str, Any]]]


class Endpoint(Value):
    """The node to ask. ``user``: empty without a login. ``tls``: None for a connection in plain text."""

    host: str
    port: int = 9_042
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None


def read_source(kind: str, endpoint: Endpoint) -> SourceRecording:
    """Return the recording of a running cluster. Raises BadSource."""
    with _session(endpoint) as session:
        budget = _Budget()
        rows: Rows = {table: _read(session, table, columns, budget) for table, columns in NODE_TABLES.items()}
        schema = {table: columns for table, columns in TABLES[kind].items() if table not in NODE_TABLES}
        rows |= {table: _read(session, table, columns, budget) for table, columns in schema.items()}
        for table, columns in NODE_TABLES.items():
            if _read(session, table, columns, budget) != rows[table]:
                raise BadSource("nodes or schema changed while they were read. Run the command again", "source_changed")
    return recording_of(kind, rows)


@contextmanager
def _session(endpoint: Endpoint) -> Iterator[Any]:
    """Yield a session with one node. Raises BadSource (``source_unavailable``) if it does not answer."""
    with explained():
        from cassandra import DependencyException, DriverException
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
        from cassandra.policies import WhiteListRoundRobinPolicy
        from cassandra.query import dict_factory
    cluster = Cluster(
        [endpoint.host],
        port=endpoint.port,
        protocol_version=_PROTOCOL,
        auth_provider=PlainTextAuthProvider(endpoint.user, endpoint.password) if endpoint.user else None,
        ssl_context=endpoint.tls,
        ssl_options={"server_hostname": endpoint.host} if endpoint.tls else None,
        connect_timeout=TIMEOUT_S,
        control_connection_timeout=TIMEOUT_S,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(
                WhiteListRoundRobinPolicy([endpoint.host]), request_timeout=TIMEOUT_S, row_factory=dict_factory
            )
        },
    )
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        yield cluster.connect()
    except NoHostAvailable as error:
        why = "; ".join(sorted({str(one) for one in error.errors.values()})) or str(error)
        raise BadSource(f"{where}: {why}", "source_unavailable") from None
    except (DriverException, DependencyException, OSError, ssl.SSLError) as error:
        raise BadSource(f"{where}: {error}", "source_unavailable") from None
    finally:
        cluster.shutdown()


class _Budget:
    """The characters that a source may still send."""

    def __init__(self) -> None:
        self._left = INPUT_BYTES_MAX

    def spend(self, row: Mapping[str, Any]) -> None:
        """Count the values of a row. Raises BadSource."""
        self._left -= sum(len(str(value)) for value in row.values())
        if self._left < 0:
            raise BadSource(f"the system tables have more than {INPUT_BYTES_MAX:,} characters")


def _read(session: Any, table: str, columns: tuple[str, ...], budget: _Budget) -> list[dict[str, Any]]:
    """Return the rows of a table with the known columns, sorted; none if the source lacks the table."""
    from cassandra import InvalidRequest
    from cassandra.query import SimpleStatement

    try:
        answer = session.execute(SimpleStatement(f"SELECT * FROM {table}", fetch_size=PAGE_ROWS))
    except InvalidRequest:
        if table == PEERS_V2 or table in _ONLY_SCYLLA:
            return []
        raise
    found = []
    for row in answer:
        kept = {name: _json(row[name]) for name in columns if name in row}
        budget.spend(kept)
        found.append(kept)
        if len(found) > ROWS_MAX:
            raise BadSource(f"{table}: must have at most {ROWS_MAX:,} rows")
    return sorted(found, key=repr)


_ONLY_SCYLLA: Final = TABLES[SCYLLA].keys() - TABLES["cassandra"].keys()


def _json(value: Any) -> Any:
    """Return a value of the driver as JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case UUID() | IPv4Address() | IPv6Address() | datetime():
            return str(value)
        case Mapping():
            return {str(_json(key)): _json(one) for key, one in value.items()}
        case list() | tuple():
            return [_json(one) for one in value]
        case _:  # Sets of the driver, in no stable order.
            return sorted((_json(one) for one in value), key=repr)
