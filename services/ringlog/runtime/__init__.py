"""Clock, randomness, settings, logging and credentials of a running process."""
