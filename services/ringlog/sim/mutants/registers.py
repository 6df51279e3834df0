"""Bugs on the path of reads and writes: replica plans, registers and those who carry them out."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant
from ringlog.sim.scenarios import PROFILE as SITUATIONS

MOVING, PLANS, REGISTERS = "ringlog.kernel.operations.moving", "ringlog.client.plans", "ringlog.node.registers"
STEPS, DURABLE = "ringlog.client.protocol", "ringlog.node.protocol.registers"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "new_group_not_needed",
        MOVING,
        'named[f"{prefix}after {one.operation}"] = members.difference(one.leaving).union(one.entering)',
        'named[f"{prefix}after {one.operation}"] = members.difference(one.entering).union(one.leaving)',
        "a write is done with a quorum of the old group alone",
        550,
    ),
    Mutant(
        "old_group_not_needed",
        MOVING,
        'named[f"{prefix}before {one.operation}"] = members.difference(one.entering).union(one.leaving)',
        'named[f"{prefix}before {one.operation}"] = members.difference(one.leaving).union(one.entering)',
        "a write is done with a quorum of the new group alone",
        400,
    ),
    Mutant(
        "quorum_of_half",
        PLANS,
        'return (AnswersNeeded(group, "", members, quorum(len(members))),)',
        'return (AnswersNeeded(group, "", members, max(len(members) // 2, 1)),)',
        "half of a group counts as a quorum",
        20,
    ),
    Mutant(
        "membership_not_checked_again",
        PLANS,
        "return made if (made.epoch, made.state_id) == (newest.epoch, newest.state_id) else plan(newest, made.request)",
        "return RequestPlan(made.request, newest.epoch, made.changed, made.asked, made.needs, made.replicas)",
        "answers are judged by the plan that was made, whatever has changed since",
        500,
        SITUATIONS,
    ),
    Mutant(
        "future_answers_count",
        PLANS,
        "if answer.refused or answer.epoch > now.epoch:",
        "if answer.refused:",
        "answers of an epoch that the coordinator does not know count",
        400,
        SITUATIONS,
    ),
    Mutant(
        "no_read_repair",
        PLANS,
        "return None if met(write.needs, has) else write",
        "return None",
        "what a read found is given away before a quorum has it",
        600,
    ),
    Mutant(
        "repair_of_readers_only",
        PLANS,
        "return None if met(write.needs, has) else write",
        "return None if met(read.needs, has) else write",
        "what a quorum of the old group has is not brought to the new one",
        1_500,
        SITUATIONS,
    ),
    Mutant(
        "plans_epoch_answered",
        REGISTERS,
        "write = PendingWrite(number, key, cell, replica.state.epoch)",
        "write = PendingWrite(number, key, cell, epoch)",
        "a replica that is ahead answers with the coordinator's epoch",
        200,
    ),
    Mutant(
        "other_history_taken",
        REGISTERS,
        "if contradicts(replica.state, epoch, state_id) or contradicts(replica.state, *newest):",
        'if contradicts(replica.state, epoch, ""):',
        "a replica takes requests that were planned on a history that its log does not have",
        20,
    ),
    Mutant(
        "every_epoch_matters",
        PLANS,
        "    return min(max(found, state.history.first), state.epoch)",
        "    return state.epoch",
        "a request waits until a replica has folded entries that do not matter for it",
        20,
    ),
    Mutant(
        "members_do_not_matter",
        PLANS,
        "mattered = _mattered(state, request, max(live.changed, made))",
        "mattered = _mattered(state, request, made)",
        "a request does not wait for the entry that made a replica one: it is refused, or answered in vain",
        40,
    ),
    Mutant(
        "message_believed",
        "ringlog.sim.actors.registers",
        "self._waiting.append(message)",
        "self.sim.world.spawn(self.host, self.node, self._adopt(kept, message.planned))",
        "a replica that is behind adopts what a message brings, without having seen it in the log",
        20,
    ),
    Mutant(
        "ahead_of_the_log",
        REGISTERS,
        "    if replica.state.epoch < epoch:\n        return Behind(epoch)\n",
        "    if replica.state.epoch < 0:\n        return Behind(epoch)\n",
        "a replica answers requests of epochs that it has not adopted",
        20,
    ),
    Mutant(
        "write_not_kept",
        DURABLE,
        "self._journal.append(JournalRecord(cells=((key, cell),)), partial(self._apply, number))",
        "self._journal.append(JournalRecord(), partial(self._apply, number))",
        "a write is answered and is not on the disk",
        150,
        "medium",
    ),
    Mutant(
        "changed_ranges_dropped",
        REGISTERS,
        "return member is not None and member.since <= before",
        "return False",
        "an epoch drops the cells of every range whose group it changes",
        100,
    ),
    Mutant(
        "last_arrival_wins",
        "ringlog.wire.cells",
        "return other if one is None or rank(other) > rank(one) else one",
        "return other",
        "the write that arrives last wins, whatever its timestamp",
        20,
    ),
    Mutant(
        "first_stream_is_all",
        REGISTERS,
        "if all(other.operation != fetch.operation for other in rest):",
        "if fetch.operation:",
        "the first of several streams counts as all of them",
        1_000,
        "medium",
    ),
    Mutant(
        "written_back_nowhere",
        STEPS,
        "RegisterRequest(repair.request, key,",
        "RegisterRequest(replace(repair.request, level=Level.ONE), key,",
        "a repair is done when one replica has it",
        250,
    ),
    Mutant(
        "digests_not_compared",
        STEPS,
        "return len({_digest(found) for found in good}) > 1 or all(found.digest for found in good)",
        "return all(found.digest for found in good)",
        "a read gives away what one replica has, whatever the digests of the others say",
        250,
    ),
)

EXPLORED: tuple[Mutant, ...] = (
    Mutant(
        "restart_goes_back",
        REGISTERS,
        "return state.epoch >= replica.durable.epoch and state.epoch > replica.state.epoch",
        "return state.epoch > replica.state.epoch",
        "a replica that restarts serves below what it had acknowledged",
        100,
    ),
    Mutant(
        "source_not_drained",
        REGISTERS,
        "if acknowledgeable(replica) < work.epoch:",
        "if acknowledgeable(replica) < 0:",
        "a source takes its snapshot with older writes in hand",
        1_100,
    ),
    Mutant(
        "acknowledged_before_drained",
        REGISTERS,
        "return min((write.epoch for write in replica.pending), default=replica.state.epoch)",
        "return replica.state.epoch",
        "an epoch is acknowledged with older writes in hand",
        20,
    ),
    Mutant(
        "deleted_before_read",
        REGISTERS,
        "answered = tuple(_looked_up(replica, reading) for reading in replica.reading if reading.key in lost)",
        "answered = tuple(Reply(open.number, replica.state.epoch) for open in replica.reading if open.key in lost)",
        "cells of a lost range go before the reads that were admitted are answered",
        2_000,
    ),
)
"""Bugs that no run of a node as it ships brings to light: its journal has epochs and writes in their order, a read is
answered at once, and registers are served when the log was read. What they break are rules of the core that hold beyond
that; they are found by going through all orders of events of a small movement.
"""
