"""The metadata log.

The port, its memory and Kafka adapters, the topics' settings, and the replica that tails and folds.
"""
