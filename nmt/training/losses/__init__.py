"""Losses: what a batch costs, and the gradient of the output layer."""
