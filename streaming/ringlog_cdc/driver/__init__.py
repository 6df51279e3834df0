"""The driver: job, batches, session, sources, sinks."""
