"""The token ring: hashing of keys, ranges, shards."""
