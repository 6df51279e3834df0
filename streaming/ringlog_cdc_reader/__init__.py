"""Reading a table's CDC log with Spark: a Python data source over the protocol core of ``ringlog.client.cdc``."""
