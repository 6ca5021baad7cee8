"""The study of the embedded world: arms at equal sampled tokens and equal optimizer updates, over seeds."""
