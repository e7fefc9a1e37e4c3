"""The receding horizon: plans for what waits are tried in the simulator, beside the ticks."""
