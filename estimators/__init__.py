"""What is known: the observation, the forecast, and one file per estimator."""
