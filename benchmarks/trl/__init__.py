"""The same training job through TRL's GRPOTrainer and through this project: ``python -m benchmarks.trl``."""
