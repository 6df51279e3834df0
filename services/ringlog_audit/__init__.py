"""The audit: an independent check of the output of the CDC pipeline. It shares no routing code with the pipeline.

Token hashes come from the Cassandra driver for Python. The other rules are plain loops over topics that any consumer
can read: mutations, CDC rows, dead letters, change topics and schemas. Table versions come from the metadata log, which
the audit replays with Ringlog's kernel.
"""
