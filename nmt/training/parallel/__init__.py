"""Training in several processes, and CUDA graphs."""
