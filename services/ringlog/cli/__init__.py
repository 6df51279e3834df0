"""The ``ringlog`` command."""
