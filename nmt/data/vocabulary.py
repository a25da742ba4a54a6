"""Special ids, the same in every vocabulary."""

from __future__ import annotations

PAD, UNK, BOS, EOS = 0, 1, 2, 3
"""The special ids, the same in every vocabulary."""
