"""Import of Debezium change events: events from any Debezium source become mutations."""
