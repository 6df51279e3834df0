"""The driver of the CDC job: job, batches, session and recovery."""
