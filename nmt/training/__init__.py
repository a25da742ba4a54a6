"""Training: from a dataset and a recipe to a run directory.

Importing this package registers all losses.
"""

from nmt.training.losses import distillation as distillation
from nmt.training.losses import sequence as sequence
