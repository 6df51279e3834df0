"""What must hold after every event, and when all is quiet again."""
