"""The materialised state in Redis: projection, keeper's writes, consistent reads."""
