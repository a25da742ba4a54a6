"""Show how a trained model translates given sentences: attention, steps, beam, embeddings."""

from nmt.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
