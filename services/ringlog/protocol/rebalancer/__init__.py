"""The zone rebalancer: zones and their partitions."""
