"""COMET (Rei et al. 2020): the mean of a neural model's scores of the translations.

COMET needs the package unbabel-comet (the extra ``nmt-toolkit[comet]``), and downloads its models
from Hugging Face. The default model has 2.3 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from nmt.errors import NmtError, install
from nmt.evaluation.metrics import Counts, Metric, metrics
from nmt.evaluation.testsets import References


@metrics.register("comet")
@dataclass(frozen=True, kw_only=True)
class Comet(Metric):
    """Mean of the model's scores of the sentences, times 100."""

    needs_source: ClassVar[bool] = True

    model: str = "Unbabel/wmt22-comet-da"
    """Name of a COMET model on Hugging Face, or path of its checkpoint (.ckpt)."""
    batch_size: int = 16
    """Sentences to score at once; changes only the speed."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")

    def checked_counts(
        self,
        hypotheses: Sequence[str],
        references: References,
        sources: Sequence[str] | None = None,
    ) -> Counts:
        """Check that the package is installed, then return the counts of each hypothesis.

        Raises:
            NmtError: as `Metric.checked_counts`, or the package is missing.
        """
        _functions()
        return super().checked_counts(hypotheses, references, sources)

    def counts(
        self, hypotheses: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> Counts:
        """Return the model's score and 1 for each sentence; computed on a GPU if there is one."""
        model = _load(self.model)
        import torch

        samples = [
            {"src": source, "mt": hypothesis, "ref": reference}
            for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
        ]
        gpus = int(torch.cuda.is_available())
        predicted = model.predict(
            samples, batch_size=self.batch_size, gpus=gpus, progress_bar=False
        )
        # The 1 counts the sentence, so that the counts of any sample add up to a mean.
        return [[float(value), 1.0] for value in predicted.scores]

    def compute(self, counts: Counts) -> tuple[float, str]:
        """Return the mean, times 100, and the number of sentences."""
        values, sentences = (sum(column) for column in zip(*counts, strict=True))
        return 100 * float(values / sentences), f"({sentences:.0f} sentences)"

    def signature(self) -> str:
        """Return the model, the scale and the version of the package."""
        from comet import __version__

        return f"nrefs:1|model:{self.model}|scale:100|comet:{__version__}"


def _functions() -> tuple[Any, Any]:
    """Return the package's functions to download and to load a model."""
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError as error:
        raise NmtError(
            f"comet needs the package unbabel-comet ({error}); {install('comet')}"
        ) from None
    return download_model, load_from_checkpoint


# One model at a time: each takes gigabytes.
@lru_cache(maxsize=1)
def _load(name: str) -> Any:
    download, load = _functions()
    try:
        is_file = name.endswith(".ckpt") and Path(name).exists()
        return load(name if is_file else download(name))
    except Exception as error:  # raised by Hugging Face, Lightning or torch
        reason = " ".join(str(error).split())
        raise NmtError(
            f"comet: the model {name!r} cannot be loaded: {reason}; give the name of a COMET model "
            "on Hugging Face or the path of a checkpoint"
        ) from None
