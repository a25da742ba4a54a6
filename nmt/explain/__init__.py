"""Views of how a trained model translates given sentences: attention, steps, beam, embeddings."""

from nmt.explain.explanation import Explanation, explain, explain_given

__all__ = ["Explanation", "explain", "explain_given"]
