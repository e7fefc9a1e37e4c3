"""TRL: rollouts through a gateway over several engines, for `AsyncGRPOTrainer` and `GRPOTrainer`.

`attach` has what a training script needs; nothing here imports TRL before it is used.
"""
