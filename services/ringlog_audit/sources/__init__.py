"""Topics and lake tables as the audit reads them."""
