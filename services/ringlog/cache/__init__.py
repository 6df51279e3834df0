"""The cached projection of the state in Redis: contents, writes of the cache writer, consistent reads."""
