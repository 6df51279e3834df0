"""The balancer at work: it has its role, follows the log, and changes nothing yet.

What it will do is to plan migrations of tablets while no range moves. It asks as anybody does, through the validator,
and writes to no topic of its own; so its term in the log is all the fence it needs: an instance that folds a higher
one ends.
"""

from __future__ import annotations

from ringlog.protocol.effects import Steps
from ringlog.protocol.role import Accept, Look, News


def balance() -> Steps[None]:
    """Serve one term of the balancer; ends by what the driver raises."""
    yield Accept()
    while True:
        yield News()
        yield Look()
