"""Training: from a dataset and a recipe to a run directory."""
