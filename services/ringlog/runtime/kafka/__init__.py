"""The configuration of Kafka clients."""
