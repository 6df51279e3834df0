"""The writes of a cluster and the expected result of each."""
