"""Consumers of the CDC log: the reading protocol, and a plain Python reader on a Kafka client."""
