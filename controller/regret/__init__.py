"""Long runs: what a policy that learns pays for learning, step by step."""
