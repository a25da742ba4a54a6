"""Models, one file a paper, in the paper's order, and the parts they are made of.

The legend of shapes, here and in every file below:

    B  sentences in a batch        D  width of the model      V  size of the vocabulary
    K  rows (beam) per sentence    H  heads                   F  width of the feed-forward layer
    N  rows in all, B x K          C  channels (width) per head
    S  source length               T  target length           L  layers

Importing this package registers every architecture.
"""

from nmt.models import bytenet as bytenet
from nmt.models import conv_s2s as conv_s2s
from nmt.models import gnmt as gnmt
from nmt.models import recurrences as recurrences
from nmt.models import rnnsearch as rnnsearch
from nmt.models import transformer_architectures as transformer_architectures
from nmt.models import transformer_lm as transformer_lm
from nmt.models.base import Model, ModelConfig, State, architectures

__all__ = ["Model", "ModelConfig", "State", "architectures"]
