"""Import of nodes and schema from a running Cassandra or ScyllaDB cluster: read, check, and write a plan."""
