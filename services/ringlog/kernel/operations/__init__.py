"""Range movements: their stages, plans and locks, the gates between stages, and the way back."""
