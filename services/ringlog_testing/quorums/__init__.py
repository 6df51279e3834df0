"""The quorum intersection simulator of CEP-21's test plan. It checks every plan of a cluster and every quorum."""
