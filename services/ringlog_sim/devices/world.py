"""The simulated world: virtual time, hosts, processes, the network between them, and randomness.

Each action is an event at a whole microsecond of virtual time. Events of the same instant run in the order in which
they were scheduled. A process that an event wakes continues directly after it. A *process* is a generator. It yields a
sleep time (microseconds), or a signal and a maximum waiting time. It is resumed with True (signalled) or False (timed
out; the timeout of a signalled wait is not an event). Nothing else runs, so a run is a function of its seed and its
script. ``fingerprint`` is a hash of all events, for comparing replays.

Hosts crash: their processes end at once, and sent messages stay in transit. Hosts pause: nothing happens on them until
they are resumed, and a suspended process does not notice. Hosts have wrong clocks. Links lose messages in one direction
or both, are slow, or deliver a straggler late and out of order, as an old connection does after its peer has opened a
new one. Apart from stragglers, a link keeps its order.

Each user of random numbers has its own stream, derived from the seed and the user's name. So removing an event from a
script does not change the other draws, which shrinking needs. Only ``Random.random`` and ``getrandbits`` are used,
because Python keeps their sequences stable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar

from ringlog.kernel.values import Micros

T = TypeVar("T")


class Chance:
    """A stream of random draws, which is equal for equal seed and name on every machine."""

    __slots__ = ("_random", "random")

    def __init__(self, seed: int, name: str) -> None:
        key = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        self._random = Random(int.from_bytes(key, "big"))
        self.random = self._random.random

    def happens(self, probability: float) -> bool:
        """Return True with that probability."""
        return self.random() < probability

    def below(self, bound: int) -> int:
        """Return an integer from 0 to ``bound - 1``."""
        return int(self.random() * bound)

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, both included."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """Return one of ``items``, which are not empty."""
        return items[int(self.random() * len(items))]

    def weighted(self, items: Sequence[tuple[T, int]]) -> T:
        """Return one of the items with a probability in proportion to its weight. The weights do not sum to 0."""
        left = int(self.random() * sum(weight for _, weight in items))
        for item, weight in items:
            left -= weight
            if left < 0:
                return item
        raise AssertionError("weights cover their sum")

    def take(self, count: int) -> bytes:
        """Return ``count`` random bytes: a ``ringlog.protocol.effects.Draw``."""
        return self._random.getrandbits(8 * count).to_bytes(count, "big") if count else b""


SECOND: Micros = 1_000_000
MS: Micros = 1_000
EPOCH_START: Micros = 1_800_000_000 * SECOND
"""The start of the virtual wall clock."""

Work = Generator[Any, bool, Any]
"""A process: yields microseconds to sleep, or a Signal, or (Signal, maximum microseconds)."""

_64_BITS = 2**64 - 1
_MESSAGE = -2
"""In place of an incarnation: the event is a message, which any incarnation of the host receives."""
_TIMER = -3
"""In place of an incarnation: the event is a timeout, which is void if the process has continued since."""


class BrokenPromise(Exception):
    """A broken invariant: its name (``rule``) and the details."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class Unanswered(Exception):
    """No answer in time. The request may have taken effect, or may still take effect."""


class Ended(Exception):
    """A process ends for the same reason as its production counterpart (superseded, fenced)."""


class PowerCut(Exception):
    """The host went down during a write to its disk."""


@dataclass(eq=False, slots=True)
class SimHost:
    """A machine. ``disk`` survives a crash unless it is wiped. ``skew``: its clock minus the true time.

    ``tears``: the host goes down in its next disk write. The write may be stored or lost.
    """

    name: str
    disk: dict[str, Any] = field(default_factory=dict)
    skew: Micros = 0
    tears: bool = False
    up: bool = True
    incarnation: int = 0
    resumes: Micros = 0
    processes: list[Process] = field(default_factory=list)
    links: dict[SimHost, Link] = field(default_factory=dict)


class Signal:
    """A wait condition for processes. Firing wakes all that wait now."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Process, int]] = []

    def fire(self) -> None:
        """Wake all waiting processes."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for process, turn in waiting:
                process.wake(turn)

    def add(self, process: Process, turn: int) -> None:
        """Let ``process`` wait, in its ``turn``-th wait."""
        if len(self._waiting) > 8:
            self._waiting = [(other, its) for other, its in self._waiting if other.turn == its]
        self._waiting.append((process, turn))


class _Asked(Signal):
    """A request in transit and its answer. The first answer to arrive counts."""

    __slots__ = ("_source", "_target", "_world", "answers", "over")

    def __init__(self, world: SimWorld, source: SimHost, target: SimHost) -> None:
        super().__init__()
        self._world = world
        self._source = source
        self._target = target
        self.answers: list[Any] = []
        self.over = False

    def answer(self, value: Any) -> None:
        """Send the target's answer."""
        self._world.send(self._target, self._source, self._settle, value)

    def _settle(self, value: Any) -> None:
        if not self.answers and not self.over:
            self.answers.append(value)
            self.fire()


class Process:
    """A generator on a host. ``ended`` is called with the reason when it ends, unless it was killed."""

    __slots__ = ("ended", "host", "incarnation", "name", "over", "turn", "work", "world")

    def __init__(
        self, world: SimWorld, host: SimHost, name: str, work: Work, ended: Callable[[str], None] | None
    ) -> None:
        self.world = world
        self.host = host
        self.incarnation = host.incarnation
        self.name = name
        self.work = work
        self.turn = 0
        self.over = False
        self.ended = ended

    def wake(self, turn: int) -> None:
        """Continue now if the process still waits in that turn."""
        if turn == self.turn and not self.over:
            self.turn += 1
            self.world.woken.append(self)

    def start(self) -> None:
        """Run to the first wait."""
        self.go(None)

    def kill(self) -> None:
        """End the process at its current wait."""
        self.over = True
        self.ended = None
        self.work.close()

    def stop(self) -> None:
        """End the process as ``kill`` does, and remove it from the host."""
        self.kill()
        if self in self.host.processes:
            self.host.processes.remove(self)

    def go(self, value: bool | None) -> None:
        """Run to the next wait. True: signalled. False: timed out."""
        if self.over:
            return
        try:
            wait = next(self.work) if value is None else self.work.send(value)
        except StopIteration:
            self._end("")
            return
        except Ended as error:
            self._end(str(error) or type(error).__name__)
            return
        except PowerCut:
            self.over = True
            self.world.power_cut(self.host)
            return
        if type(wait) is int:
            self.world.wake_at(self, wait)
        elif type(wait) is tuple:
            wait[0].add(self, self.turn)
            self.world.wake_at(self, wait[1])
        else:
            wait.add(self, self.turn)

    def _end(self, why: str) -> None:
        self.over = True
        if self in self.host.processes:
            self.host.processes.remove(self)
        if self.ended is not None:
            self.ended(why)


@dataclass(slots=True)
class Link:
    """One direction between two hosts. ``lost``, ``late``: shares of messages. ``slow``: microseconds added."""

    chance: Chance
    cut: bool = False
    lost: float = 0.0
    late: float = 0.0
    slow: Micros = 0
    last: Micros = 0


class SimWorld:
    """Time, hosts and network of one run."""

    def __init__(self, seed: int, tracing: bool = False) -> None:
        self.seed = seed
        self.now: Micros = 0
        self.events = 0
        self.fingerprint = 0
        self.tracing = tracing
        self.story: list[str] = []
        self.hosts: dict[str, SimHost] = {}
        self.power_cut: Callable[[SimHost], None] = self.crash
        self._links: dict[tuple[str, str], Link] = {}
        self.woken: deque[Process] = deque()
        self._queue: list[tuple[Micros, int, SimHost | None, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._tears = Chance(seed, "tears")

    def close(self) -> None:
        """End all processes and drop all references, at the end of the run."""
        for host in self.hosts.values():
            for process in tuple(host.processes):
                process.kill()
        for host in self.hosts.values():
            host.processes.clear()
            host.disk.clear()
            host.links.clear()
        self._queue.clear()
        self.woken.clear()
        vars(self).clear()

    # ---------------------------------------------------------------------------------------------- time

    def on(self, host: SimHost | None, delay: Micros, action: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``action(argument)`` after ``delay``, on the current incarnation of ``host`` (None: on no host)."""
        self._count += 1
        incarnation = -1 if host is None else host.incarnation
        heappush(self._queue, (self.now + delay, self._count, host, incarnation, action, argument))

    def wake_at(self, process: Process, delay: Micros) -> None:
        """Continue ``process`` after ``delay``, unless it has continued before."""
        self._count += 1
        heappush(
            self._queue, (self.now + delay, self._count, process.host, _TIMER, process.go, (process, process.turn))
        )

    def run(self, until: Micros, done: Callable[[], bool] | None = None) -> bool:
        """Run events up to ``until`` or until ``done``, which is called after each event. Return True if it is done."""
        queue, woken, fingerprint, events = self._queue, self.woken, self.fingerprint, self.events
        action: Callable[[Any], None]
        argument: Any
        try:
            while True:
                if woken:
                    process = woken.popleft()
                    if process.over:
                        continue
                    awake, time, count, action, argument = process.host, self.now, self._count, process.go, True
                    if awake.resumes > time:
                        self._count += 1
                        heappush(queue, (awake.resumes, self._count, awake, awake.incarnation, action, argument))
                        continue
                elif queue and queue[0][0] <= until:
                    time, count, host, incarnation, action, argument = heappop(queue)
                    if host is not None:
                        if incarnation == _TIMER:
                            process, turn = argument
                            if process.over or process.turn != turn:
                                continue
                        elif not host.up or (incarnation != _MESSAGE and host.incarnation != incarnation):
                            continue
                        if host.resumes > time:
                            # A paused machine does everything later. Incoming messages follow the events that were
                            # there already.
                            if incarnation == _MESSAGE:
                                self._count = count = self._count + 1
                            heappush(queue, (host.resumes, count, host, incarnation, action, argument))
                            continue
                        if incarnation == _TIMER:
                            process.turn, argument = turn + 1, False
                    self.now = time
                else:
                    break
                events += 1
                fingerprint = (fingerprint * 1_000_003 ^ time ^ count << 44) & _64_BITS
                action(argument)
                if done is not None and done():
                    return True
        finally:
            self.fingerprint, self.events = fingerprint, events
        self.now = max(self.now, until)
        return False

    def clock(self, host: SimHost) -> Micros:
        """Return the wall clock of ``host``, in microseconds since 1970."""
        return EPOCH_START + self.now + host.skew

    def tell(self, who: str, what: str) -> None:
        """Add one line to the trace."""
        if self.tracing:
            self.story.append(f"{self.now / SECOND:10.6f}  {who:<16} {what}")

    # --------------------------------------------------------------------------------------------- hosts

    def host(self, name: str) -> SimHost:
        """Return the host with that name. Create it at first use."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(name)
        return self.hosts[name]

    def spawn(self, host: SimHost, name: str, work: Work, ended: Callable[[str], None] | None = None) -> Process:
        """Start a process. ``ended`` is called with the reason of its end, unless it was killed."""
        process = Process(self, host, name, work, ended)
        host.processes.append(process)
        self.on(host, 0, lambda _: process.start())
        return process

    def begin(self, host: SimHost, name: str, work: Work) -> None:
        """Start a process and run it to its first wait, for a message that has just arrived at the host."""
        process = Process(self, host, name, work, None)
        host.processes.append(process)
        process.start()

    def crash(self, host: SimHost, wipe: bool = False) -> None:
        """End all processes of the host."""
        host.up = False
        host.incarnation += 1
        host.resumes = 0
        for process in host.processes:
            process.kill()
        host.processes.clear()
        if wipe:
            host.disk.clear()

    def store(self, host: SimHost, name: str, value: Any) -> None:
        """Write to the host's disk atomically. The value is durable when this returns. Raise PowerCut."""
        if host.tears:
            host.tears = False
            if self._tears.happens(0.5):
                host.disk[name] = value
            raise PowerCut
        host.disk[name] = value

    def boot(self, host: SimHost) -> None:
        """Mark the host as up. The caller starts its processes next."""
        host.up = True

    def pause(self, host: SimHost, duration: Micros) -> None:
        """Suspend all events on the host for that duration."""
        host.resumes = max(host.resumes, self.now + duration)

    # ------------------------------------------------------------------------------------------- network

    def link(self, source: str, target: str) -> Link:
        """Return the link in one direction."""
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(Chance(self.seed, f"link/{source}/{target}"))
        return link

    def _linked(self, source: SimHost, target: SimHost) -> Link:
        link = source.links[target] = self.link(source.name, target.name)
        return link

    def heal(self) -> None:
        """Repair all links and clocks. Pauses end at their own time."""
        for link in self._links.values():
            link.cut, link.lost, link.late, link.slow = False, 0.0, 0.0, 0
        for host in self.hosts.values():
            host.skew = 0

    def send(self, source: SimHost, target: SimHost, deliver: Callable[[Any], None], argument: Any = None) -> bool:
        """Send a message. Return False if it is lost at once, which the sender does not learn.

        A message is lost if its target is down, and kept while the target is paused.
        """
        link = source.links.get(target) or self._linked(source, target)
        chance = link.chance
        if link.cut or (link.lost and chance.happens(link.lost)):
            return False
        arrival = self.now + 100 + int(chance.random() * 900) + link.slow
        if link.late and chance.happens(link.late):
            arrival += chance.between(50, 3_000) * MS
        else:
            arrival = link.last = max(arrival, link.last)
        self._count += 1
        heappush(self._queue, (arrival, self._count, target, _MESSAGE, deliver, argument))
        return True

    def call(
        self, source: SimHost, target: SimHost, ask: Callable[[Callable[[Any], None]], None], timeout: Micros
    ) -> Generator[Any, bool, Any]:
        """Call ``target`` and wait for its answer. ``ask(answer)`` runs there, and calls ``answer`` now or later.

        An answer that is an exception is raised here. Raises Unanswered after ``timeout``.
        """
        asked = _Asked(self, source, target)
        self.send(source, target, ask, asked.answer)
        yield asked, timeout
        if not asked.answers:
            raise Unanswered
        value = asked.answers.pop()  # an exception must not be found in the frames of its own traceback
        asked.over = True
        if isinstance(value, Exception):
            try:
                raise value
            finally:
                del value
        return value
