"""Parallel text to a dataset: cleaning, subwords and encoding.

Importing this package registers every cleaning step.
"""

from nmt.preprocess.cleaning.steps import Language, Numbers, Step, steps

__all__ = ["Language", "Numbers", "Step", "steps"]
