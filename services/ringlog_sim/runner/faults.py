"""The faults of a script and their effect on the world."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.outcome import Entry, Undecodable, UnknownCommand
from ringlog.kernel.values import Micros
from ringlog.runtime.draw import draw_uuid
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import author_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_state_id
from ringlog.wire.records import REJECTED, CommandRequest, encode_request
from ringlog_sim.client import ANSWER_APPLIED
from ringlog_sim.devices.broker import METADATA, REQUESTS, RESULTS
from ringlog_sim.devices.memo import cached_requests, cached_result
from ringlog_sim.devices.world import MS, Chance, SimHost, SimWorld
from ringlog_sim.runner.script import FAULTS

if TYPE_CHECKING:
    from ringlog_sim.actors.cdc.job import SimCdcJob
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation


FAULT_ACTIONS: Final = (*FAULTS, "cut_off", "lies", "stall", "slow_reader", "slow_disk", "asked_again")
"""The names of faults: those that any run may draw, and those of particular situations."""


class Faulty(Protocol):
    """The parts of a run that faults affect."""

    world: SimWorld
    sim: Simulation
    nodes: dict[str, SimNode]
    job: SimCdcJob

    def boot(self, host: SimHost) -> None:
        """Start (again) the processes of the host."""


class Faults:
    """The faults of a run. Each ends after its duration."""

    def __init__(self, run: Faulty) -> None:
        self.run = run
        self.world = run.world
        self.calm = False
        self.world.power_cut = self._power_cut

    def stop(self) -> None:
        """End all faults, repair everything, and start all hosts that are down."""
        self.calm = True
        self.run.sim.moments.disarm()
        self.world.heal()
        for host in self.world.hosts.values():
            host.tears = False
        self.run.sim.log_ends.deaths.left = 0
        self.run.sim.log_ends.take_again()
        self.run.sim.cache_up = True
        self.run.sim.active_faults.clear()
        if not self.run.sim.broker.up:
            self.run.sim.broker.start()
        for host in self.world.hosts.values():
            if not host.up:
                self.run.boot(host)
        self.run.job.calm()

    def act(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        """Perform one fault."""
        sim, broker = self.run.sim, self.run.sim.broker
        self._during(what, arguments)
        match what, arguments:
            case (("crash" | "wipe"), (name, duration)):
                self._crash(self.world.host(name), duration, wipe=what == "wipe")
            case "pause", (name, duration):
                self.world.pause(self.world.host(name), duration * MS)
            case "cut", (name, other, way, duration):
                self._cut(name, other, way, duration * MS)
            case "cut_off", (name, duration):
                self._cut(name, "broker", "both", duration * MS)
            case "lies", (name, lie):
                self.run.nodes[name].lie = lie
            case "lossy", (name, percent, duration):
                self._links(name, duration, lost=percent / 100)
            case "late", (name, percent, duration):
                self._links(name, duration, late=percent / 100)
            case "slow", (name, added, duration):
                self._links(name, duration, slow=added * MS)
            case "clock", (name, skew):
                self.world.host(name).skew += skew * MS
            case "leader", ():
                broker.change_leader()
            case "broker_down", (duration,):
                broker.stop()
                self.world.on(None, duration * MS, lambda _: None if broker.up else broker.start())
            case "hand_over", (role,):
                broker.hand_over(role)
            case "cache_flush", ():
                sim.cache.clear()
                self._cache_lost()
            case "cache_down", (duration,):
                sim.cache_up = False
                self.world.on(None, duration * MS, self._cache_back)
            case "cache_stale", ():
                self._stale_cache()
            case "garbage", (count,):
                self._garbage(Chance(self.world.seed, f"garbage/{number}"), count)
            case "copies", (count,):
                self._copies(Chance(self.world.seed, f"copies/{number}"), count)
            case "second_writer", (duration,):
                self.world.pause(self.world.host("spark"), duration * MS)
                self.run.job.second()
            case "mid_batch", (steps, duration):
                self.run.job.die_after(steps, lambda host: self._crash(host, duration, wipe=False))
            case "stall", (name, role, duration):
                self.world.pause(self.world.host(name), duration * MS)
                broker.hand_over(role)
            case "slow_reader", (name, lag):
                self.run.nodes[name].read_slowly(lag * MS)
            case "slow_disk", (name, most):
                self.run.nodes[name].registers.disk = most * MS
            case "asked_again", ():
                self._asked_again()
            case "torn", (name,):
                self.world.host(name).tears = True
            case _:
                raise AssertionError(f"{what} {arguments} is not a fault")

    # ------------------------------------------------------------------------------------------- internals

    def _during(self, what: str, arguments: tuple[Any, ...]) -> None:
        """Mark a fault as active for its duration or one second, for the coverage."""
        active = self.run.sim.active_faults
        active.add(what)
        duration = arguments[-1] if arguments and isinstance(arguments[-1], int) else 0
        self.world.on(None, max(duration, 1_000) * MS, lambda _: active.discard(what))
        for operation in self.run.sim.log.state.operations.values():
            if operation.stage not in ("finished", "cancelled"):
                self.run.sim.did["fault", what, operation.kind, operation.stage] += 1

    def _crash(self, host: SimHost, duration: Micros, wipe: bool) -> None:
        if not host.up:
            return
        self.world.crash(host, wipe)
        self.world.on(None, duration * MS, lambda _: None if host.up else self.run.boot(host))

    def take_rights(self, names: Sequence[str], away: int) -> None:
        """Stop the processes on these hosts and reject all their earlier messages. Restarted processes have new
        permissions.

        The first host returns after ``away`` milliseconds.
        """
        for name in names:
            host = self.world.host(name)
            self.run.sim.broker.denied[name] = host.incarnation if host.up else host.incarnation - 1
            if host.up:
                self.world.crash(host)
                self.world.boot(host)
        first = self.world.host(names[0])
        first.up = False
        self.world.on(None, away * MS, lambda _: None if first.up else self.run.boot(first))

    def start_again(self, host: SimHost) -> None:
        """Restart a host whose reader is before the new beginning of the log."""
        self.world.tell(host.name, "was passed by the log's beginning")
        self.run.sim.did["snapshots", "passed"] += 1
        self._crash(host, 100, wipe=False)

    def _power_cut(self, host: SimHost) -> None:
        """Let the host go down during a disk write. It returns after a second."""
        self.world.tell(host.name, "loses power")
        self.run.sim.did["besides", "power cut"] += 1
        self._crash(host, 1_000, wipe=False)

    def _cut(self, name: str, other: str, way: str, duration: Micros) -> None:
        links = []
        if way in ("both", "there"):
            links.append(self.world.link(name, other))
        if way in ("both", "back"):
            links.append(self.world.link(other, name))
        for link in links:
            link.cut = True

        def repair(_: object) -> None:
            for link in links:
                link.cut = False

        self.world.on(None, duration, repair)

    def _links(self, name: str, duration: int, **changes: Any) -> None:
        links = [self.world.link(*pair) for pair in ((name, "broker"), ("broker", name), (name, "cache"))]
        for link in links:
            for field, value in changes.items():
                setattr(link, field, value)

        def repair(_: object) -> None:
            for link in links:
                for field in changes:
                    setattr(link, field, type(changes[field])(0))

        self.world.on(None, duration * MS, repair)

    def _cache_back(self, _: object) -> None:
        self.run.sim.cache_up = True

    def _stale_cache(self) -> None:
        """Restore the cache from an older copy, which was made at the last such fault."""
        sim = self.run.sim
        kept = sim.shared.get("cache_copy")
        sim.shared["cache_copy"] = copy(sim.cache)
        if kept is not None:
            sim.cache = kept
            self._cache_lost()

    def _cache_lost(self) -> None:
        self.run.sim.shared["cache_losses"] = self.run.sim.shared.get("cache_losses", 0) + 1

    def _garbage(self, chance: Chance, count: int) -> None:
        """Write invalid records to the metadata topic: random bytes, foreign entries, and truncated or
        damaged entries.
        """
        broker = self.run.sim.broker
        records = broker.partition(METADATA).records
        values: list[tuple[str, Any]] = []
        for _ in range(count):
            choice = chance.below(5)
            if choice == 0 or not records:
                values.append(("", chance.take(chance.between(1, 60))))
            elif choice == 1:
                values.append(("", self._foreign(chance)))
            elif choice == 2:
                values.append(("", self._under_a_used_id(chance)))
            elif choice == 3:
                data = chance.pick(records).value
                values.append(("", data[: chance.below(len(data))]))
            else:
                data = bytearray(chance.pick(records).value)
                data[chance.below(len(data))] ^= 1 << chance.below(8)
                values.append(("", bytes(data)))
        self.world.spawn(
            self.world.host("stranger"), "stranger", broker.try_append(self.world.host("stranger"), METADATA, values)
        )

    def _foreign(self, chance: Chance) -> bytes:
        """Return a valid entry of another cluster."""
        state = self.run.sim.log.state
        previous = state.state_id or None
        made = new_state_id(previous, self.world.clock(self.world.host("stranger")), chance.take(ENTROPY_BYTES))
        request = draw_uuid(chance)
        return author_entry(draw_uuid(chance), made, previous, request, state.epoch, "stranger", 0, Noop()).data

    def _under_a_used_id(self, chance: Chance) -> bytes:
        """Return an entry that follows the head but reuses an applied request id."""
        state = self.run.sim.log.state
        used = next((entry for entry in self.run.sim.log.entries[::-1] if entry and chance.happens(0.5)), None)
        request, now = used.request_id if used else draw_uuid(chance), self.world.clock(self.world.host("stranger"))
        previous = state.state_id or None
        made = new_state_id(previous, now, chance.take(ENTROPY_BYTES))
        return author_entry(self.run.sim.cluster_id, made, previous, request, state.epoch, "stranger", 0, Noop()).data

    def _asked_again(self) -> None:
        """Send every rejected request once more, as from retrying clients."""
        broker, host = self.run.sim.broker, self.world.host("stranger")
        results, requests = broker.partition(RESULTS), broker.partition(REQUESTS)
        read = [cached_result(record.value) for record in results.records[: results.visible]]
        refused = {result.request_id for result in read if result.outcome == REJECTED}
        values: dict[bytes, None] = {}
        for record in requests.records[: requests.visible]:
            if any(request.request_id in refused for request in cached_requests(record.value)):
                values[record.value] = None
        again = [("", value) for value in values]
        self.world.spawn(host, "asked again", broker.try_append(host, REQUESTS, again))

    def _copies(self, chance: Chance, count: int) -> None:
        """Send copies of old entries again, as from a late retry of a producer.

        Only applied entries are copied as requests, because a direct author sends no request for its entry.
        """
        broker, host = self.run.sim.broker, self.world.host("stranger")
        records, requests = broker.partition(METADATA).records, broker.partition(REQUESTS).records
        applied = [entry for entry in self.run.sim.log.entries if entry is not None]
        for _ in range(count):
            way = chance.below(3)
            if way == 0 and records:
                self.world.spawn(host, "copy", broker.try_append(host, METADATA, [("", chance.pick(records).value)]))
            elif way == 1 and requests:
                self.world.spawn(host, "copy", broker.try_append(host, REQUESTS, [("", chance.pick(requests).value)]))
            elif applied:
                request = _request_of(chance.pick(applied), self.run.sim.shared[ANSWER_APPLIED])
                self.world.spawn(host, "copy", broker.try_append(host, REQUESTS, [("", request)]))


def _request_of(item: Entry, answer_applied: bool) -> bytes:
    """Return the request of an entry, as its client once sent it."""
    if isinstance(item.command, Undecodable | UnknownCommand):
        return b"no request"
    kind, version, payload = encode_command(item.command)
    about = item.request_id, item.since_epoch, item.submitter, kind, version, payload
    return encode_request(CommandRequest(*about, answer_applied))
