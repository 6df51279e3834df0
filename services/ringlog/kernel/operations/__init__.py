"""Range movements: their stages, plans and locks, the gates between stages, and cancellation."""
