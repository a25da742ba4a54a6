"""`nmt score`: metrics, significance, and scores by a model."""
