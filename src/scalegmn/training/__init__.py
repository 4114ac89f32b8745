"""Training: recipes, the loop, checkpoints, sweeps, and models that were trained."""
