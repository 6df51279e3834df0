"""Who serves which range: canonical layouts, the live placements, and the deltas that lead from one to the next."""
