"""The balancer: load reports in, tablet moves out."""
