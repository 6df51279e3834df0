"""The zone rebalancer: data nodes of zones, and the steps of their partitions."""
