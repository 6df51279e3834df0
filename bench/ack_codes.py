"""The cost of the MAC of an acknowledgement: to make one, and to read and check one, compared with none.

Processor time of one core, best of five rounds, of acknowledgements of an idle node.
Usage: ``python bench/ack_codes.py [COUNT]``.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable

from ringlog.wire.acks import key_of, verified_ack, with_mac
from ringlog.wire.records import NodeAck, encode_node_ack

ROUNDS = 5
MASTER = "a-master-of-many-letters"


def micros_each(count: int, work: Callable[[], object]) -> float:
    """Processor time of one of ``count``, in microseconds."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken) / count * 1e6


def main() -> None:
    """Print three lines."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    nodes = [str(uuid.UUID(int=number)) for number in range(count)]
    state = str(uuid.UUID(int=count))
    acks = [NodeAck(state, node, f"3@{node}", 12_345, 12_345, (), 1_000, 0, (), state) for node in nodes]
    plain = [encode_node_ack(ack) for ack in acks]
    keys = [key_of(MASTER, node) for node in nodes]
    made = [with_mac(data, key) for data, key in zip(plain, keys, strict=True)]
    write = micros_each(count, lambda: [encode_node_ack(ack) for ack in acks])
    code = micros_each(count, lambda: [with_mac(data, key) for data, key in zip(plain, keys, strict=True)])
    read = micros_each(count, lambda: [verified_ack(data, ()) for data in plain])
    check = micros_each(count, lambda: [verified_ack(data, (MASTER,)) for data in made])
    print(f"to write one: {write:.1f} us; its code: {code:.1f} us more, {len(made[0]) - len(plain[0])} bytes more")
    print(
        f"to read one without a master: {read:.1f} us; to read and check one: {check:.1f} us, ratio {check / read:.2f}"
    )


if __name__ == "__main__":
    main()
