"""Training steps of trees against those of trajectories: ``python -m benchmarks.train_step``."""
