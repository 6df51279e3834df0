"""The load balancer's planner: which tablets move, their targets, and why the others stay. Pure and deterministic."""
