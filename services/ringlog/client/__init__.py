"""What other programs import: submit commands, read the state behind a barrier, watch it change."""
