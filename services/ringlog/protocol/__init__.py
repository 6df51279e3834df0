"""Protocols: in which order things are done, once for production and for the simulator.

A protocol is a generator. It yields *effects* (``ringlog.protocol.effects``), which are immutable values, and is sent
the outcome of each. It does nothing itself: it reads no clock, waits for nobody and knows neither threads nor sockets.
A *driver* performs the effects: ``ringlog.log.replicas.driver`` and the agents' threads on Kafka and Redis,
``ringlog_sim.replica`` and its actors on virtual time, where a process may be cut off between any two of them.

- An outcome that a protocol acts upon is a value. Where going on makes no sense the driver raises, and closes the
  generator; a protocol yields nothing while it is closed.
- Time is in microseconds. How long to wait is the protocol's to say; how often to look around meanwhile is the
  driver's.
- Decisions stay pure functions (``validator_core``, ``fates``); a protocol only calls them at the right moment.
"""
