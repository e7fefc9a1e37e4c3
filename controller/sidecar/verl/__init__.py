"""verl 0.9.1 and later: a router and a client for its rollout, a prompt side for its data."""
