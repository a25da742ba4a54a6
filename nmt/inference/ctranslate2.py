"""CTranslate2 as the engine of a translator, for exports of ``nmt.formats``.

CTranslate2 has one stop criterion, ``first_beam`` of :class:`Beam`; other settings are refused, not
approximated. Any length penalty works, because this module ranks the hypotheses. Two differences
remain. CTranslate2 does not mask PAD and BOS, so they take places among the candidates. Trained
models hardly find them likely. With a shortlist, a sentence may choose all tokens that are on the
list of any sentence of its batch.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt.data.vocabulary import EOS
from nmt.errors import NmtError
from nmt.inference.execution import ON_CPU, Execution, use_engine
from nmt.inference.lines import LineTranslator
from nmt.inference.request import Sentence
from nmt.lazy import np, torch
from nmt.runs.exports import (
    MAX_POSITIONS,
    QUANTIZATIONS,
    REMEDY,
    Export,
    check_vocabularies,
)
from nmt.runtime.processes import available_cores
from nmt.search import Beam, Greedy, Hypothesis, Strategy
from nmt.search.config import SearchConfig
from nmt.search.hypotheses import best_first
from nmt.search.ranking import NoPenalty, PenaltyWithAlpha

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALMOST_NONE = 1e-6
"""Exponent of the length that changes no score. With 0 CTranslate2 would stop earlier."""


SOURCE_TOKENS = 1024
"""Source tokens of a batch on a CPU, if `search.batch_tokens` is "auto"."""

FEWER_TOKENS = 512
"""Source tokens of a batch with a beam, or with a shortlist, where a larger batch has more logits
for each sentence."""


class CTranslate2Translator(LineTranslator):
    """Translates lines with an exported model.

    What CTranslate2 cannot do alike is left to a translator of this package, if there is one.
    """

    engine = "ctranslate2"
    windows_ahead = 1

    def __init__(
        self,
        export: Export,
        config: SearchConfig,
        execution: Execution = ON_CPU,
        load_in_torch: Callable[[], LineTranslator] | None = None,
    ) -> None:
        """Check the export and the settings; the model is loaded at the first use.

        Args:
            export: an export of format "ctranslate2".
            config: settings of the search.
            execution: settings of how the model is run; its precision may differ from the precision
                of the stored weights.
            load_in_torch: loads the same model into this package; None if there is only the export.

        Raises:
            NmtError: CTranslate2 is not installed, or does not support the precision, another
                setting or the search.
        """
        check_execution(execution)
        super().__init__(export.subwords, config, export.languages)
        search_options(config)
        if execution.shortlist and not export.has_shortlist:
            raise NmtError(
                f"{export.path}: an export without a shortlist; learn one for the run with nmt "
                "shortlist, and make the export again with nmt export"
            )
        self._model = _Model(export, execution)
        self._uses_shortlist = execution.shortlist
        self._export = export
        self._load_in_torch = load_in_torch and cache(load_in_torch)
        self._source_tokens, self._target_tokens = export.vocabularies
        self._target_ids = {token: at for at, token in enumerate(self._target_tokens)}

    @property
    def survives_fork(self) -> bool:
        """Whether processes that are forked can translate: each loads the model anew."""
        return self._model.kind == "cpu"

    def search_alone(self) -> None:
        """Search batches one after another; loads no model."""
        self._model.workers = 1

    @property
    def in_torch(self) -> LineTranslator:
        """The translator of the same model, for the same direction, in this package.

        Raises:
            NmtError: there is only an export.
        """
        if self._load_in_torch is None:
            raise NmtError(f"an export cannot do this; give the run, or {use_engine('nmt')}")
        return self._load_in_torch().in_direction_of(self)

    def check_retry(self) -> None:
        """Refuse to search lines again, without loading the model into this package."""
        if self._load_in_torch is None:
            raise NmtError(f"retry: an export cannot do this; give the run, or {use_engine('nmt')}")

    def find(
        self, sentences: dict[int, Sentence], count: int = 1
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search each sentence by CTranslate2 where it searches alike, else by this package.

        CTranslate2 begins at the call, not when the first result is read.
        """
        by_strategy: dict[Strategy | None, dict[int, Sentence]] = {}
        for at, sentence in sentences.items():
            by_strategy.setdefault(self._strategy_of(sentence), {})[at] = sentence
        rest = by_strategy.pop(None, {})
        if rest and self._load_in_torch is None:
            raise NmtError(
                f"CTranslate2 has no such requirements on single lines; {use_engine('nmt')}"
            )
        parts: list[Iterable[tuple[int, list[Hypothesis]]]] = [
            _Search(self, replace(self.config, strategy=strategy), alike, count)
            for strategy, alike in by_strategy.items()
            if strategy is not None
        ]
        if rest:
            parts.append(self._found_in_torch(rest, count))
        return chain.from_iterable(parts)

    def _found_in_torch(
        self, sentences: dict[int, Sentence], count: int
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield what this package finds; it begins when the first result is read."""
        yield from self.in_torch.find(sentences, count)

    def _strategy_of(self, sentence: Sentence) -> Strategy | None:
        """Return the strategy of a sentence, None if CTranslate2 has no such search."""
        # CTranslate2 would never end right after a prefix, and would let the tokens that are not
        # avoided share the probability.
        if sentence.prefix or sentence.phrases or sentence.avoided:
            return None
        if sentence.strategy is not None:
            try:
                search_options(replace(self.config, strategy=sentence.strategy))
            except NmtError:
                return None
        return sentence.strategy or self.config.strategy

    def begin(
        self, sentences: Sequence[Sentence], limit: int, options: dict[str, Any]
    ) -> Sequence[Any]:
        """Begin to search a batch; return CTranslate2's future of each sentence.

        Args:
            sentences: sentences of similar length.
            limit: maximum length of the translations, EOS included.
            options: CTranslate2's options for the search.
        """
        with _one_line(self._export):
            futures: Sequence[Any] = self._model.translator.translate_batch(
                [self._source(sentence.source) for sentence in sentences],
                # Sources are cut already; 0 turns off the limit of 1,024 that CTranslate2 has.
                max_input_length=0,
                max_decoding_length=limit,
                min_decoding_length=0,
                return_scores=True,
                return_end_token=True,
                use_vmap=self._uses_shortlist,
                asynchronous=True,
                **options,
            )
        return futures

    def wait(self, futures: Sequence[Any]) -> list[Any]:
        """Return the results of a batch."""
        with _one_line(self._export):
            return [future.result() for future in futures]

    def ids(self, result: Any) -> list[list[int]]:
        """Return the target ids of each hypothesis of a result."""
        return [[*map(self._target_ids.__getitem__, tokens)] for tokens in result.hypotheses]

    def batches(
        self, config: SearchConfig, sentences: dict[int, Sentence]
    ) -> Iterator[Sequence[int]]:
        """Yield sentences of similar length, the longest first."""
        limit = self._batch_limit(config, config.strategy.rows_per_sentence)
        longest_first = sorted(sentences, key=lambda at: -len(sentences[at].source))
        while longest_first:
            size = max(1, limit // len(sentences[longest_first[0]].source))
            yield longest_first[:size]
            longest_first = longest_first[size:]

    def _batch_limit(self, config: SearchConfig, rows: int = 1) -> int:
        """Return the number of source tokens of a batch."""
        if config.batch_tokens == "auto" and self._model.kind == "cpu":
            return FEWER_TOKENS if self._uses_shortlist or rows > 1 else SOURCE_TOKENS
        return max(1, config.batch_limit(self._model.kind) // rows)

    def log_probabilities(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        """Return CTranslate2's scores of the tokens of whole targets."""
        if longer_than_tables(sources, targets):
            return self.in_torch.log_probabilities(sources, targets)
        with _one_line(self._export):
            scored = self._model.translator.score_batch(
                [self._source(tokens) for tokens in sources],
                [self._target(ids) for ids in targets],
                max_batch_size=self._batch_limit(self.config),
                batch_type="tokens",
                max_input_length=0,
            )
        return [result.log_probs[: len(ids)] for result, ids in zip(scored, targets, strict=True)]

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        """Return the attention of the layer and heads that the export names."""
        if longer_than_tables(sources, targets):
            return self.in_torch.attention(sources, targets)
        # CTranslate2 has no attention to an empty source, whose only token is EOS.
        filled = [at for at, tokens in enumerate(sources) if len(tokens) > 1]
        with _one_line(self._export):
            results = self._model.translator.translate_batch(
                [self._source(sources[at]) for at in filled],
                # All but the last token are given; the token of the last step is not read.
                [self._target(targets[at][:-1]) for at in filled],
                max_batch_size=SOURCE_TOKENS,
                batch_type="tokens",
                max_input_length=0,
                max_decoding_length=max([1, *map(len, targets)]),
                beam_size=1,
                return_attention=True,
                return_end_token=True,
            )
        weights = [np.ones((len(ids), 1), np.float32) for ids in targets]
        for at, result in zip(filled, results, strict=True):
            rows = np.array(result.attention[0], np.float32)[: len(targets[at])]
            weights[at] = np.pad(rows, ((0, 0), (0, 1)))  # the end of the source was left out
        return weights

    def _source(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens without the EOS, which CTranslate2 adds."""
        return [self._source_tokens[id_] for id_ in ids[:-1]]

    def _target(self, ids: Sequence[int]) -> list[str]:
        return [self._target_tokens[id_] for id_ in ids if id_ != EOS]


class _Queued(NamedTuple):
    """A batch that CTranslate2 searches."""

    lines: Sequence[int]
    """Line numbers."""
    results: Sequence[Any]
    """A future for each line."""
    is_patient: bool
    """Whether each sentence gets more hypotheses than the beam holds."""


class _Search:
    """A search of sentences, which begins when it is made; iterate over the results."""

    def __init__(
        self,
        translator: CTranslate2Translator,
        config: SearchConfig,
        sentences: dict[int, Sentence],
        count: int,
    ) -> None:
        """Queue all sentences.

        Args:
            translator: translator of the model.
            config: settings of the search.
            sentences: sentences by line number.
            count: number of hypotheses per sentence.
        """
        self._translator, self._sentences, self._count = translator, sentences, count
        self._rows = config.strategy.rows_per_sentence
        self._penalty = getattr(config.strategy, "length_penalty", NoPenalty())
        self._options = search_options(config)
        self._limits = {at: config.max_length(len(one.source)) for at, one in sentences.items()}
        self._queue: deque[_Queued] = deque()
        for lines in translator.batches(config, sentences):
            # CTranslate2 lists at most as many hypotheses as its beam holds, without more patience.
            self._add(lines, max(self._limits[at] for at in lines), count > self._rows)

    def _add(self, lines: Sequence[int], limit: int, is_patient: bool) -> None:
        """Queue a batch, whose translations have a maximum length, EOS included."""
        options = self._options
        if is_patient:
            patience = max(2, -(-self._count // self._rows))
            options = {**options, "patience": patience, "num_hypotheses": patience * self._rows}
        results = self._translator.begin([self._sentences[at] for at in lines], limit, options)
        self._queue.append(_Queued(lines, results, is_patient))

    def __iter__(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield the hypotheses of each sentence; one without a whole result is queued again."""
        count, rows = self._count, self._rows
        while self._queue:
            lines, results, is_patient = self._queue.popleft()
            again: dict[tuple[int, bool], list[int]] = {}
            for at, result in zip(lines, self._translator.wait(results), strict=True):
                limit = self._limits[at]
                hypotheses = self._hypotheses(result)
                # A batch has one maximum length, the largest of its sentences.
                if any(len(one.tokens) + one.finished > limit for one in hypotheses):
                    again.setdefault((limit, is_patient), []).append(at)
                # Greedy search has one hypothesis, cut or not.
                elif rows == 1:
                    yield at, hypotheses
                # Cut hypotheses have displaced finished ones.
                elif not is_patient and not all(one.finished for one in hypotheses):
                    again.setdefault((limit, True), []).append(at)
                else:
                    yield at, best_first(hypotheses, count)[: max(rows, count)]
            for (limit, patiently), alike in again.items():
                self._add(alike, limit, patiently)

    def _hypotheses(self, result: Any) -> list[Hypothesis]:
        """Return the hypotheses of CTranslate2's result for a sentence."""
        hypotheses = []
        for ids, score in zip(self._translator.ids(result), result.scores, strict=True):
            # CTranslate2 divides by a penalty, too; ours is of the log-probability.
            log_probability = score * len(ids) ** self._options["length_penalty"]
            score = log_probability / self._penalty.divisor(float(len(ids)))
            if finished := ids[-1] == EOS:
                ids.pop()
            hypotheses.append(Hypothesis(ids, log_probability, score, finished))
        return hypotheses


def longer_than_tables(*sides: Sequence[Sequence[int]]) -> bool:
    """Whether a sentence is longer than the exported position tables."""
    return any(len(tokens) > MAX_POSITIONS for side in sides for tokens in side)


def check_execution(execution: Execution) -> None:
    """Refuse the settings that are for models of this package alone.

    Raises:
        NmtError: a shortlist on a GPU, or a compiled or recorded step is requested.
    """
    # On a GPU CTranslate2 pads its output layer, and then keeps the places of an earlier list.
    if execution.shortlist and execution.kind != "cpu":
        raise NmtError(f"shortlist: for CTranslate2 on a CPU alone; {use_engine('nmt')}")
    if execution.compile:
        raise NmtError(f"compile: an export does not run in torch; {use_engine('nmt')}")
    if execution.cuda_graphs:
        raise NmtError(f"cuda_graphs: an export does not run in torch; {use_engine('nmt')}")


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


class _Model:
    """CTranslate2's translator of an export, loaded anew in each process that a fork makes."""

    def __init__(self, export: Export, execution: Execution) -> None:
        """Check that CTranslate2 can load the export, and compute in the precision.

        Raises:
            NmtError: it cannot.
        """
        try:
            import ctranslate2
        except ImportError:
            raise NmtError(
                "engine ctranslate2 needs CTranslate2; pip install ctranslate2"
            ) from None
        self.kind, precision = execution.kind, execution.precision
        self._index = int(execution.device.partition(":")[2] or 0)
        self._compute_type = QUANTIZATIONS.get(precision, "auto")
        able = ctranslate2.get_supported_compute_types(self.kind, self._index)
        if self._compute_type not in (*able, "auto"):
            raise NmtError(
                f"precision {precision}: CTranslate2 cannot compute in it on this {self.kind}; "
                f"it has {', '.join(sorted(able))}"
            )
        export.check_files()
        with _one_line(export):
            check_vocabularies(export)
        self._export, self.workers, self._threads = export, execution.workers, execution.threads
        self._of_process: tuple[int, Any] = (0, None)

    @property
    def translator(self) -> Any:
        """The translator of this process."""
        process, translator = self._of_process
        if process != os.getpid():  # CTranslate2's threads do not survive a fork
            translator = self._load()
            self._of_process = os.getpid(), translator
        return translator

    def _load(self) -> Any:
        import ctranslate2

        threads = torch.get_num_threads() if "torch" in sys.modules else 0
        with _one_line(self._export):
            translator = ctranslate2.Translator(
                str(self._export.path),
                device=self.kind,
                device_index=self._index,
                compute_type=self._compute_type,
                inter_threads=self.workers,
                intra_threads=self._threads or (1 if self.workers > 1 else available_cores()),
                # No limit: a full queue would block the caller, who has read no result yet.
                max_queued_batches=-1,
            )
        if threads:  # CTranslate2 changes OpenMP's threads, which torch shares
            torch.set_num_threads(threads)
        return translator


@contextmanager
def _one_line(export: Export) -> Iterator[None]:
    """Convert the errors of CTranslate2 about an unusable export to :class:`NmtError`."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError) as error:
        raise NmtError(f"{export.path}: CTranslate2 cannot use it: {error}; {REMEDY}") from None
