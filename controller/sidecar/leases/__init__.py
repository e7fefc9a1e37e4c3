"""The controller for clients that carry their trajectories out themselves."""
