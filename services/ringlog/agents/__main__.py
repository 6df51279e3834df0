"""Run one agent: ``python -m ringlog.agents ROLE``, configured by the ``RINGLOG_*`` variables."""

from __future__ import annotations

import sys

from ringlog.runtime.process import delay_gc

if __name__ == "__main__":
    delay_gc()
    from ringlog.agents.worker import run
    from ringlog.protocol.roles import ROLES

    if len(sys.argv) != 2 or sys.argv[1] not in ROLES:
        sys.exit(f"usage: python -m ringlog.agents {{{' | '.join(ROLES)}}}")
    run(sys.argv[1])
