"""Clock, randomness, settings and logs of a running process: the small things that every shell is handed."""
