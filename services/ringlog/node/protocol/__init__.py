"""The protocols of a node: turns, streams, acknowledgements, registration and joining.

Protocols are generators that yield effects, as in ``ringlog.protocol``. ``ringlog.node.process`` performs them on
Kafka, gRPC and disk; ``ringlog_sim.actors.nodes.node`` performs them on virtual time. The decisions of each step are
made by ``row_replica`` and ``registers``.
"""
