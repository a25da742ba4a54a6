"""Training: from a dataset and a recipe to a run directory.

Importing this package registers every loss.
"""

from nmt.training import sequence as sequence
