"""Values to bytes and back: Avro records, the envelope of the log, ids.

Whatever the bytes, reading raises nothing but ``WireError``; the log's own entries come back as values in every case.
"""
