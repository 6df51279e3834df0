"""Protocols: the order of work of every role, shared by production and the simulator.

A protocol is a generator. It yields *effects* (``ringlog.protocol.effects``), which are immutable values, and receives
the outcome of each. It performs nothing itself: it reads no clock, does not block, and has no threads or sockets. A
*driver* performs the effects. In production the drivers are ``ringlog.log.replicas.driver`` and the agents' threads, on
Kafka and Redis. In the simulator they are ``ringlog_sim.replica`` and its actors, on virtual time. The simulator may
stop a process between any two effects.

- An outcome that a protocol acts on is a value. If continuing makes no sense, the driver raises and closes the
  generator. A protocol that is being closed yields nothing.
- Times are in microseconds. The protocol decides how long to wait, the driver how often to poll meanwhile.
- Decisions are pure functions (``validator.core``, ``submission.results``). A protocol only calls them at the right
  moment.
"""
