"""The metadata service and recoveries. Only the profile of members asks for any (``ringlog.sim.reconfiguring``):
elsewhere nodes keep no copy of the log.
"""

from __future__ import annotations

from ringlog.sim.checks.members import Members
from ringlog.sim.families.family import Family

FAMILY = Family(
    name="service",
    commands=dict.fromkeys(
        (
            "AddServiceMember",
            "RemoveServiceMember",
            "ReconfigureService",
            "AdvanceService",
            "EnterRecovery",
            "LeaveRecovery",
            "ForceState",
        )
    ),
    checks=(Members,),
)
