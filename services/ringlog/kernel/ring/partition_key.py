"""The bytes of a partition key that are hashed to its token, as Cassandra and ScyllaDB compose them.

A key of one column is the raw serialised value. A key of several is, for each component, its length in 2 bytes
big-endian, its bytes and one zero byte.
"""

from __future__ import annotations

from collections.abc import Sequence

COMPONENT_BYTES_MAX = 65_535


def compose(components: Sequence[bytes]) -> bytes:
    """The key's bytes from the CQL-serialised values of its columns, in key order.

    Raises ``ValueError`` when there is no component, or when one of several is longer than 65,535 bytes.
    """
    if not components:
        raise ValueError("a partition key has at least one component")
    if len(components) == 1:
        return components[0]
    parts: list[bytes] = []
    for place, component in enumerate(components):
        if len(component) > COMPONENT_BYTES_MAX:
            raise ValueError(
                f"component {place} has {len(component)} bytes; at most {COMPONENT_BYTES_MAX} are possible"
            )
        parts += (len(component).to_bytes(2, "big"), component, b"\0")
    return b"".join(parts)
