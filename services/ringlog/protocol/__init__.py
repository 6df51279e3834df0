"""Protocols: the order of work of every role, shared by production and the simulator.

A protocol is a coroutine. It awaits *effects* (``ringlog.protocol.effects``), which are immutable values, and receives
the outcome of each. It performs nothing itself: it reads no clock, does not block, and has no threads or sockets. A
*driver* performs the effects, without an event loop. In production the drivers are ``ringlog.log.replicas.driver`` and
the agents' threads, on Kafka and Redis. In the simulator they are ``ringlog_sim.replica`` and its actors, on virtual
time. The simulator may stop a process between any two effects.

- An outcome that a protocol acts on is a value. If continuing makes no sense, the driver raises and closes the
  coroutine. A protocol that is being closed awaits nothing.
- An effect that contains steps, such as ``Exclusive``, has a function that starts them. A driver that does not perform
  the effect thus leaves no coroutine that was never awaited.
- Times are in microseconds. The protocol decides how long to wait, the driver how often to poll meanwhile.
- Decisions are pure functions (``validator.core``, ``submission.results``). A protocol only calls them at the right
  moment.
"""
