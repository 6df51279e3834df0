"""Encoding of values: Avro records, the envelope of the log, ids.

Invariant: for any bytes, decoding either returns a value or raises ``WireError``. Decoding an entry of the log never
raises.
"""
