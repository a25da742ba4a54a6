"""Models, one file a paper, in the paper's order, and the parts they are made of.

The legend of shapes, here and in every file below:

    B  sentences in a batch        D  width of the model      V  size of the vocabulary
    K  rows (beam) per sentence    H  heads                   F  width of the feed-forward layer
    N  rows in all, B x K          C  channels (width) per head
    S  source length               T  target length           L  layers; tokens of a row of a pack
    P  tokens of a pack            R  rows of a pack          Q  queries
    G  heads of keys and values, one for each group of heads of queries

Importing this package registers every architecture.
"""

from nmt.models.base import Model, ModelConfig, State, architectures
from nmt.models.rivals import bytenet as bytenet
from nmt.models.rivals import conv_s2s as conv_s2s
from nmt.models.rivals import gnmt as gnmt
from nmt.models.rivals import rnnsearch as rnnsearch
from nmt.models.transformer import language_model as language_model
from nmt.models.transformer import model as model
from nmt.models.transformer import recurrences as recurrences

__all__ = ["Model", "ModelConfig", "State", "architectures"]
