"""Participation of a data store in a cluster, as one of its nodes."""
