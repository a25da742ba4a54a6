"""Training: from a dataset and a recipe to a run directory.

Importing this package registers all losses.
"""

from nmt.training import distillation as distillation
from nmt.training import sequence as sequence
