"""Signs: real reinforcement learning of a real, tiny language model on two CPU cores."""
