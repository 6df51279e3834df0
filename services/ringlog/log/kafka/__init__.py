"""The log and the other topics on Kafka."""
