"""The quorum intersection simulator of CEP-21's test plan: every plan of a cluster, every quorum, to the end."""
