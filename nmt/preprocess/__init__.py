"""Parallel text to a dataset: cleaning, subwords and encoding.

Importing this package registers every cleaning step.
"""

from nmt.preprocess.cleaning.steps import CleaningStep, Language, Numbers, steps

__all__ = ["CleaningStep", "Language", "Numbers", "steps"]
