"""Streams of data between nodes."""
