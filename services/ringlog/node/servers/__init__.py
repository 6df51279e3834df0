"""The gRPC and HTTP servers of a node."""
