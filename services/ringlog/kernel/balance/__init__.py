"""The load balancer's planner: which tablets move where, and why the others stay. Pure and deterministic."""
