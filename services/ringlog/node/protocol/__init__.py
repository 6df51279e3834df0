"""A node's steps, which threads and the simulator perform alike: turns, streams, acknowledgements, its way in.

Generators that yield effects, as ``ringlog.protocol`` has them. ``ringlog.node.process`` performs them on Kafka, gRPC
and disk, ``ringlog_sim.actors.nodes.node`` on virtual time. What is decided in a step, ``row_replica`` and
``registers`` say.
"""
