"""The client library: submit commands, read the state behind a barrier, watch it change."""
