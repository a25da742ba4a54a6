"""CTranslate2 as the engine of a translator, for exports of ``nmt.formats``.

CTranslate2 has one stop criterion, ``first_beam`` of :class:`Beam`; other settings are refused, not
approximated. Any length penalty works, because this module ranks the hypotheses. One difference
remains: CTranslate2 does not mask PAD and BOS, so they take places among the candidates. Trained
models hardly find them likely.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap
from typing import TYPE_CHECKING, Any

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError, install
from nmt.inference.execution import ON_CPU, Execution, use_engine
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Sentence
from nmt.lazy import torch
from nmt.runs.exports import (
    MAX_POSITIONS,
    QUANTIZATIONS,
    REMEDY,
    Export,
    check_vocabularies,
    vocabularies,
)
from nmt.runtime.processes import available_cores
from nmt.search import Beam, Greedy, Hypothesis
from nmt.search.config import SearchConfig
from nmt.search.hypotheses import best_first
from nmt.search.ranking import NoPenalty, PenaltyWithAlpha

if TYPE_CHECKING:
    from torch import Tensor

ALMOST_NONE = 1e-6
"""Exponent of the length that changes no score. With 0 CTranslate2 would stop earlier."""


class CTranslate2Translator(LineTranslator):
    """Translates lines with an exported model."""

    def __init__(self, export: Export, config: SearchConfig, execution: Execution = ON_CPU) -> None:
        """Load the model.

        Args:
            export: an export of format "ctranslate2".
            config: settings of the search.
            execution: settings of how the model is run; its precision may differ from the precision
                of the stored weights.

        Raises:
            NmtError: CTranslate2 is not installed, or does not support the precision, another
                setting or the search.
        """
        check_execution(execution)
        super().__init__(export.subwords, config, export.languages)
        self._options = search_options(config)
        self._penalty = getattr(config.strategy, "length_penalty", NoPenalty())
        self._export = export
        self._translator = _load(export, execution)
        self._source_tokens, self._target_tokens = vocabularies(export.subwords)
        self._target_ids = {token: at for at, token in enumerate(self._target_tokens)}

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Translate sentences in batches of one length, which share one maximum length."""
        if any(
            sentence.prefix or sentence.phrases or sentence.avoided or sentence.strategy
            for sentence in sentences.values()
        ):
            raise NmtError(f"CTranslate2 has no requirements on single lines; {use_engine('nmt')}")
        sources = {at: sentence.source for at, sentence in sentences.items()}
        rows = self.config.strategy.rows_per_sentence
        cut = {}
        # CTranslate2 lists at most as many hypotheses as its beam holds.
        if count > rows:
            cut, sources = sources, {}
        for at, hypotheses in self._translate(sources, self._options):
            if rows == 1 or all(hypothesis.finished for hypothesis in hypotheses):
                yield at, hypotheses
            else:
                cut[at] = sources[at]
        # Cut hypotheses have displaced finished ones: search again with more patience.
        patience = max(2, -(-count // rows))
        options = {**self._options, "patience": patience, "num_hypotheses": patience * rows}
        for at, hypotheses in self._translate(cut, options):
            yield at, best_first(hypotheses, count)[: max(rows, count)]

    def _translate(
        self, sources: dict[int, list[int]], options: dict[str, Any]
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        by_length: dict[int, list[int]] = {}
        limit = self.config.batch_limit(self._translator.device)
        for at in sorted(sources, key=lambda at: -len(sources[at])):
            # A call takes one maximum length, but ours depends on the source's length.
            by_length.setdefault(len(sources[at]), []).append(at)
        with _one_line(self._export):
            waiting = {
                length: self._translator.translate_batch(
                    [self._source(sources[at]) for at in sentences],
                    max_batch_size=max(1, limit // self.config.strategy.rows_per_sentence),
                    batch_type="tokens",
                    max_input_length=0,
                    max_decoding_length=self.config.max_length(length),
                    min_decoding_length=0,
                    return_scores=True,
                    return_end_token=True,
                    asynchronous=True,
                    **options,
                )
                for length, sentences in by_length.items()
            }
        for length, sentences in by_length.items():
            for at, future in zip(sentences, waiting[length], strict=True):
                with _one_line(self._export):
                    result = future.result()
                pairs = zip(result.hypotheses, result.scores, strict=True)
                hypotheses = starmap(self._hypothesis, pairs)
                yield at, sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Return CTranslate2's scores of the tokens of whole targets."""
        with _one_line(self._export):
            scored = self._translator.score_batch(
                [self._source(tokens) for tokens in sources],
                [[self._target_tokens[id_] for id_ in ids if id_ != EOS] for ids in targets],
                max_batch_size=self.config.batch_limit(self._translator.device),
                batch_type="tokens",
                max_input_length=0,
            )
        return [result.log_probs[: len(ids)] for result, ids in zip(scored, targets, strict=True)]

    def attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Tensor]:
        """Raise an NmtError: an export does not say which attention heads to use."""
        raise NmtError(f"CTranslate2 has no alignments; {use_engine('nmt')}")

    def _source(self, ids: list[int]) -> list[str]:
        """Return the tokens without the EOS, which CTranslate2 adds."""
        return [self._source_tokens[id_] for id_ in ids[:-1]]

    def _hypothesis(self, tokens: list[str], score: float) -> Hypothesis:
        ids = [self._target_ids[token] for token in tokens]
        # CTranslate2 returns scores after its penalty; ours is applied to the log-probability.
        log_probability = score * len(ids) ** self._options["length_penalty"]
        is_finished = ids[-1] == EOS
        return Hypothesis(
            ids[:-1] if is_finished else ids,
            log_probability,
            log_probability / self._penalty.divisor(len(ids)),
            is_finished,
        )


def check_execution(execution: Execution) -> None:
    """Refuse the settings that are for models of this package alone.

    Raises:
        NmtError: a shortlist or a compiled step is requested.
    """
    if execution.shortlist:
        raise NmtError(f"shortlist: an export holds none; {use_engine('nmt')}")
    if execution.compile:
        raise NmtError(f"compile: an export does not run in torch; {use_engine('nmt')}")


def search_options(config: SearchConfig) -> dict[str, Any]:
    """Return CTranslate2's options for a search.

    Raises:
        NmtError: CTranslate2 has no options with the same results.
    """
    strategy = config.strategy
    longest = max(config.max_source_length, config.max_length(config.max_source_length))
    if longest > MAX_POSITIONS:
        raise NmtError(
            f"search: translations of up to {longest} pieces, but CTranslate2 has {MAX_POSITIONS} "
            "positions; lower search.max_source_length"
        )
    if config.coverage_penalty:
        raise _without_equal("coverage_penalty", "computes it otherwise")
    if config.constraints:
        raise _without_equal("constraints", "lets the remaining tokens share the probability")
    if type(strategy) is Greedy:  # a subclass of a plugin searches otherwise
        return {"beam_size": 1, "length_penalty": 0.0}
    if type(strategy) is not Beam:
        raise _without_equal(f"strategy {strategy.name}", "has beam and greedy search alone")
    # Refuse every setting that CTranslate2 treats differently: both engines must give the same
    # text, or say why not.
    if strategy.stop != "first_beam":
        raise NmtError(
            f"search.strategy.stop {strategy.stop}: CTranslate2 stops as first_beam does; "
            f"set search.strategy.stop to first_beam, or {use_engine('nmt')}"
        )
    for field in dataclasses.fields(strategy):
        is_known = field.name in ("name", "beam", "length_penalty", "stop")
        if not is_known and getattr(strategy, field.name) != field.default:
            raise _without_equal(f"strategy.{field.name}", "has nothing like it")
    penalty = strategy.length_penalty
    alpha = penalty.alpha if isinstance(penalty, PenaltyWithAlpha) else 0.0
    return {
        "beam_size": strategy.beam,
        "num_hypotheses": strategy.beam,
        "length_penalty": alpha or ALMOST_NONE,
    }


def _without_equal(key: str, why: str) -> NmtError:
    return NmtError(f"search.{key}: CTranslate2 {why}; {use_engine('nmt')}")


def _load(export: Export, execution: Execution) -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise NmtError(f"engine ctranslate2 needs CTranslate2; {install('ctranslate2')}") from None
    kind, precision, workers = execution.kind, execution.precision, execution.workers
    index = int(execution.device.partition(":")[2] or 0)
    compute_type = QUANTIZATIONS.get(precision, "auto")
    able = ctranslate2.get_supported_compute_types(kind, index)
    if compute_type not in (*able, "auto"):
        raise NmtError(
            f"precision {precision}: CTranslate2 cannot compute in it on this {kind}; "
            f"it has {', '.join(sorted(able))}"
        )
    threads = torch.get_num_threads() if "torch" in sys.modules else 0
    export.check_files()
    with _one_line(export):
        check_vocabularies(export)
        translator = ctranslate2.Translator(
            str(export.path),
            device=kind,
            device_index=index,
            compute_type=compute_type,
            inter_threads=workers,
            intra_threads=1 if workers > 1 else available_cores(),
            max_queued_batches=-1,
        )
    if "torch" in sys.modules:  # CTranslate2 changes OpenMP's threads, which torch shares
        torch.set_num_threads(threads)
    return translator


@contextmanager
def _one_line(export: Export) -> Iterator[None]:
    """Convert the errors of CTranslate2 about an unusable export to :class:`NmtError`."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError) as error:
        raise NmtError(f"{export.path}: CTranslate2 cannot use it: {error}; {REMEDY}") from None
