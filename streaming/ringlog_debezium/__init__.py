"""Debezium in: change events of any Debezium source become mutations."""
