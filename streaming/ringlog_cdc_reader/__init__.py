"""Spark data source for the CDC log of a table, on top of the protocol core in ``ringlog.client.cdc``."""

from ringlog.extras import require

require("spark")
