"""Protocols of the CDC job: the order of its steps, as generators (``ringlog.protocol``).

Threads, Kafka and Spark perform them in ``ringlog_cdc.driver.writer`` and ``ringlog_cdc.driver.batch``, virtual time in
``ringlog_sim.actors``.
"""
