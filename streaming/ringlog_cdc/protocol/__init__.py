"""Protocols of the CDC job: the order of its steps, as generators (``ringlog.protocol``).

Threads, Kafka and Spark perform them in ``ringlog_cdc.writer`` and ``ringlog_cdc.batch``, virtual time in
``ringlog.sim.actors``.
"""
