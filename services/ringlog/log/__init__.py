"""The metadata log: its port, its Kafka and memory adapters, the topics' settings, and the replica that folds it."""
