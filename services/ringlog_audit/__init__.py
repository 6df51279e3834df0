"""The audit: a second opinion on what the CDC pipeline wrote, sharing none of its routing code.

Token hashes come from the Cassandra driver for Python, everything else is a plain loop over what any consumer can
read: the mutations, the CDC topic, the dead letters, the change topics and the schemas topic. Of Ringlog it uses
nothing.
"""
