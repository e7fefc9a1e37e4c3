"""A tournament: policies on workloads, in the simulator, one table."""
