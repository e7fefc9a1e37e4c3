"""How well the estimators would have forecast a run: steps, replay, scores, baselines."""
