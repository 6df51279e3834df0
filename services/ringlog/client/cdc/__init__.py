"""Consumers of the CDC log: the reading protocol, and a Python reader on a Kafka client."""

from ringlog.client.cdc.errors import CdcReadError
from ringlog.client.cdc.reader import CdcReader
from ringlog.client.cdc.rows import CdcChange, LogRow

__all__ = ["CdcChange", "CdcReadError", "CdcReader", "LogRow"]
