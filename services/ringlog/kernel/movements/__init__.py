"""How operations and tablet transitions begin, advance and are cancelled."""
