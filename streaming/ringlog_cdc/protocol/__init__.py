"""Protocols of the CDC job: the order of its steps, as coroutines over effects (``ringlog.protocol``).

``ringlog_cdc.driver.writer`` and ``ringlog_cdc.driver.batch`` perform them with threads, Kafka and Spark.
``ringlog_sim.actors`` performs them on virtual time.
"""
