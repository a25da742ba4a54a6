"""Parallel text to a dataset: cleaning, subwords and encoding.

Importing this package registers every cleaning step.
"""

from nmt.preprocess.cleaning_steps import Step, steps
from nmt.preprocess.language import Language
from nmt.preprocess.numbers import Numbers

__all__ = ["Language", "Numbers", "Step", "steps"]
