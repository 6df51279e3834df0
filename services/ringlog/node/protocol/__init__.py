"""The protocols of a node: the mutation loop, streams, acknowledgements, registration and joining.

Protocols are coroutines over effects, as in ``ringlog.protocol``. ``ringlog.node.process`` performs them on
Kafka, gRPC and disk; ``ringlog_sim.actors.nodes.node`` performs them on virtual time. The protocols order the steps.
Decisions within a step are made by ``ringlog.node.rows.replica`` and ``ringlog.node.registers.registers``.
"""
