"""Lines in, lines out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from for_each import for_each
from table_model import TableModel
from torch import Tensor

from nmt.data.extremes import Extremes
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import NmtError
from nmt.evaluation.metrics import metrics
from nmt.inference import Execution, LineTranslator, Request, SearchConfig, Translator
from nmt.inference import translator as translator_module
from nmt.inference.consensus import expected_utilities
from nmt.inference.fast.kernels import convert
from nmt.inference.request import Sentence
from nmt.models import architectures
from nmt.models.base import State
from nmt.recipe.config import build
from nmt.search import Hypothesis, Strategy

LETTERS = "abcdefghijkl"


class Letters:
    """One id per letter, from 4; a wide space is an "a", other characters are nothing."""

    context = None
    extremes = None
    directions = None
    shared = True
    source_size = target_size = 4 + len(LETTERS)
    tags: tuple[list[int], list[int]] = ([], [])
    target = SimpleNamespace(tags={})
    target_order = "left_to_right"

    def encode_source(self, lines: list[str]) -> list[list[int]]:
        lines = [line.replace("\u3000", "a") for line in lines]
        return [[4 + LETTERS.index(it) for it in line if it in LETTERS] for line in lines]

    encode_target = encode_phrases = encode_source

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        return ["".join(LETTERS[it - 4] for it in line if it >= 4) for line in ids]


class Reverser(TableModel):
    """Gives the source backwards, and remembers the batches it was given."""

    def __init__(self) -> None:
        super().__init__(0, vocabulary=Letters.target_size)
        self.batches: list[Tensor] = []
        self.was_inference: list[bool] = []

        def row(sentence: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
            wanted = [*sentence[-2::-1], EOS]
            at = min(len(prefix) - 1, len(wanted) - 1)
            return [9.0 if token == wanted[at] else 0.0 for token in range(self.vocabulary)]

        self.row = row  # type: ignore[assignment]

    def start(self, source: Tensor) -> State:
        self.batches.append(source)
        self.was_inference.append(not self.training and not torch.is_grad_enabled())
        return super().start(source)


def translator(**keys: object) -> Translator:
    config = build(SearchConfig, {"strategy": "greedy", **keys}, "search")
    return Translator(Reverser(), Letters(), config)  # type: ignore[arg-type]


class FewLetters(Letters):
    """Six ids for each letter."""

    def decode_target(self, ids: list[list[int]]) -> list[str]:
        return ["".join(LETTERS[(it - 4) // 6] for it in line if it >= 4) for line in ids]


def test_a_list_has_different_texts_and_begins_with_the_translation() -> None:
    class Undecided(TableModel):
        """Likes the ids of one letter, then the end, so that texts come in several subwords."""

        def __init__(self) -> None:
            super().__init__(1, vocabulary=Letters.target_size)
            row = self.row
            liked = {0: range(10, 16), 1: [EOS]}
            self.row = lambda sentence, prefix: [  # type: ignore[assignment]
                value + 9.0 * (token in liked[min(len(prefix) - 1, 1)])
                for token, value in enumerate(row(sentence, prefix))
            ]

    config = build(SearchConfig, {"strategy": "beam", "max_length_offset": 8}, "search")
    model = Undecided()
    several = Translator(model, FewLetters(), config)  # type: ignore[arg-type]
    lines = ["abc", "d", "", "efg", "bc"]
    lists = list(several.translations(lines, 4))
    assert [len({it.text for it in each}) for each in lists] == [4, 4, 1, 4, 4]
    assert [each[0].text for each in lists] == list(several.translate(lines))
    for each in lists:
        ranks = [(it.hypothesis.finished, it.hypothesis.score) for it in each]
        assert ranks == sorted(ranks, reverse=True)
    found = dict(several.find({0: Sentence([4, 5, 6, EOS], [], [])}, 4))[0]
    assert len(set(several.subwords.decode_target([it.tokens for it in found]))) < len(found) == 4


@for_each(
    ("count", "lists"),
    [(4, [4, 8, 16, 32]), (50, [50, 100, 200, 256]), (100, [100, 200, 256]), (200, [200, 400])],
)
def test_the_search_for_distinct_texts_has_an_end(count: int, lists: list[int]) -> None:
    asked = []

    def find(sentences: dict[int, Sentence], count: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        asked.append(count)
        yield from ((at, [Hypothesis([4], 0.0, 0.0, True)] * count) for at in sentences)

    sentences = {at: Sentence([4, EOS]) for at in range(2)}
    translator: Any = SimpleNamespace(find=find, subwords=Letters())
    found = dict(LineTranslator.find_distinct(translator, sentences, count))
    assert {at: len(hypotheses) for at, hypotheses in found.items()} == {0: 1, 1: 1}
    assert asked == lists


def batches(translator: Translator) -> list[Tensor]:
    assert isinstance(translator.model, Reverser)
    return translator.model.batches


@for_each("seed", range(10))
def test_as_many_lines_come_out_as_went_in_and_in_order(seed: int) -> None:
    generator = random.Random(seed)
    lines = [
        "".join(generator.choices(LETTERS + " ", k=generator.choice([0, 0, 1, 3, 9])))
        for _ in range(generator.randint(0, 40))
    ]
    small = translator(window=generator.randint(1, 9), batch_tokens=generator.randint(1, 40))
    assert list(small.translate(lines)) == [line.replace(" ", "")[::-1] for line in lines]


def test_blank_lines_give_empty_lines_without_the_model() -> None:
    blank = translator()
    assert list(blank.translate(["", "  ", "\t\r", "\u2028", "\u3000", "?!"])) == [""] * 6
    assert batches(blank) == []


def test_batches_with_a_shortlist_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator_module, "SHORTLIST_TOKENS", 32)  # two short sentences
    for strategy in ("greedy", "beam"):
        few = translator(strategy=strategy)
        everything: Any = SimpleNamespace(
            search=lambda strategy, *wanted, model=few.model: strategy.search(model, *wanted)
        )
        few.shortlister = SimpleNamespace(choose=lambda *_, chosen=everything: chosen)
        assert list(few.translate(["ab", "c", "d", "e", "f"])) == ["ba", "c", "d", "e", "f"]
        assert [len(batch) for batch in batches(few)] == [2, 2, 1]


def test_lines_before_an_error_are_translated() -> None:
    def lines() -> Iterator[str]:
        yield from ["a", "b", "c"]
        raise NmtError("the disk is gone")

    for ahead in (0, 2):
        few = translator(window=1)
        few.windows_ahead = ahead
        translations = few.translate(lines())
        assert [next(translations) for _ in range(3)] == ["a", "b", "c"]
        with pytest.raises(NmtError, match="the disk is gone"):
            next(translations)


def test_no_more_than_a_window_is_read_ahead() -> None:
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append("a")
            yield "a"

    translations = translator(window=3).translate(endless())
    assert read == []
    assert [next(translations) for _ in range(4)] == ["a"] * 4
    assert len(read) == 6


@pytest.fixture
def short_counts_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.inference.translator.MIN_TOKENS", 1)


@pytest.mark.usefixtures("short_counts_as_it_is")
def test_sentences_of_like_length_share_batches_of_bounded_size() -> None:
    sorting = translator(batch_tokens=12)
    list(sorting.translate(["a", "abcde", "ab", "b", "abcdef", "c"]))
    # With EOS: 7 | 6 3 (12 padded) | 2 2 2.
    assert [batch.shape for batch in batches(sorting)] == [(1, 7), (2, 6), (3, 2)]
    assert batches(sorting)[1].tolist()[1] == [4, 5, EOS, PAD, PAD, PAD]


def test_short_sentences_make_no_more_rows_than_those_of_sixteen_tokens() -> None:
    words = translator(batch_tokens=32)
    list(words.translate(list("abcd")))
    assert [batch.shape for batch in batches(words)] == [(2, 2), (2, 2)]


@pytest.mark.usefixtures("short_counts_as_it_is")
def test_batches_are_bounded_with_the_rows_of_the_search() -> None:
    wide = translator(strategy={"name": "beam", "beam": 2}, batch_tokens=8)
    list(wide.translate(list("abcd")))
    assert [batch.shape for batch in batches(wide)] == [(2, 2), (2, 2)]


@for_each(("workers", "sizes"), [(1, [16]), (2, [2] * 8), (16, [1] * 16)])
def test_workers_have_several_batches_each(workers: int, sizes: list[int]) -> None:
    config = build(SearchConfig, {"strategy": "greedy"}, "search")
    execution = Execution(workers=workers)
    shared = Translator(Reverser(), Letters(), config, execution)  # type: ignore[arg-type]
    sentences = {at: Sentence([4, EOS], [], []) for at in range(16)}
    assert [len(batch) for batch in shared._batches(1, sentences)] == sizes


def test_batches_are_larger_on_a_gpu_unless_their_size_is_given() -> None:
    usual, given = SearchConfig(), SearchConfig(batch_tokens=100)
    assert [usual.batch_limit(device) for device in ("cpu", "cuda")] == [16_384, 131_072]
    assert [given.batch_limit(device) for device in ("cpu", "cuda")] == [100, 100]


def test_a_batch_that_does_not_fit_a_gpu_is_searched_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halving, tried, memory = translator(), [], 2
    search = halving._search_at_once

    def full(strategy: Strategy, sentences: list[Sentence], count: int) -> list[list[Hypothesis]]:
        tried.append(len(sentences))
        if len(sentences) > memory:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return search(strategy, sentences, count)

    monkeypatch.setattr(halving, "_search_at_once", full)
    assert list(halving.translate(["a", "ab", "abc", "b", "c"])) == ["a", "ba", "cba", "b", "c"]
    assert tried == [5, 2, 3, 1, 2]
    memory = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        list(halving.translate(["a", "ab"]))


def test_a_sentence_longer_than_a_batch_has_one_of_its_own() -> None:
    tight = translator(batch_tokens=1)
    assert list(tight.translate(["abc", "de"])) == ["cba", "ed"]


def test_sources_that_are_too_long_are_cut_and_counted() -> None:
    cutting = translator(max_source_length=4)
    assert list(cutting.translate(["abc", "abcd", "abcdef"])) == ["cba", "cba", "cba"]
    assert cutting.counts.truncated == 2


def test_the_greatest_length_follows_from_the_source() -> None:
    short = translator(max_length_ratio=0.5, max_length_offset=1)
    assert list(short.translate(["abcde", "abcdef"])) == [
        "edcb",
        "fedc",
    ]  # 0.5 x 6 + 1, 0.5 x 7 + 1
    assert SearchConfig().max_length(30) == 80


def test_equal_lines_are_searched_once() -> None:
    once = translator(strategy="beam")
    lines = ["ab", Request("ab"), "c", Request("ab", n_best=2), Request("ab", prefix="b"), "ab"]
    lists = list(once.translations(lines))
    assert [best.text for best, *_ in lists] == ["ba", "ba", "c", "ba", "ba", "ba"]
    assert [len(one) for one in lists] == [1, 1, 1, 2, 1, 1]
    assert sorted(map(len, batches(once))) == [1, 3]
    assert once.counts.target_tokens == 5 * 3 + 2


def test_target_tokens_are_counted_with_their_ends() -> None:
    counting = translator(max_length_ratio=0.0, max_length_offset=3)
    assert list(counting.translate(["ab", "", "abc"])) == ["ba", "", "cba"]
    assert counting.counts.target_tokens == 3 + 3  # "ba" with EOS, and "cba" cut before it


def test_hypotheses_come_best_first_and_blank_lines_have_none() -> None:
    strategy = {"name": "beam", "stop": "all_finished"}
    first, blank = translator(strategy=strategy).search(["ab", ""])
    assert first[0].tokens == [5, 4]
    assert len(first) == 4
    assert blank == []


def test_a_request_says_what_a_translation_begins_with_and_what_it_holds() -> None:
    asking = translator(strategy="lexical_beam", max_length_ratio=0.0, max_length_offset=2)
    requests = ["abc", Request("abc", prefix="ka"), Request("abc", phrases=("kl", "", "j"))]
    plain, begun, holding = asking.translate([*requests, Request("  ", prefix="k")][:3])
    assert plain == "cb"
    assert begun.startswith("ka")
    assert "kl" in holding
    assert "j" in holding
    assert list(asking.translate([Request(" ", prefix="k")])) == [""]
    request = Request("abc", prefix="k", phrases=("l",), avoid=("cb", "a"))
    assert asking.encode([request])[0].avoided == [[6, 5], [4]]
    # The end has room, too, and nothing else.
    for prefix, is_finished in (("cba", True), ("cb", False)):
        [[whole]] = asking.translations([Request("abc", prefix=prefix)])
        assert (whole.text, whole.hypothesis.finished) == ("cba", is_finished)


@for_each(
    ("line", "languages", "expected"),
    [
        ("ab。cd", ("zh", "en"), "ba dc"),
        ("ab. cd", ("en", "zh"), "badc"),
        ("ab. cd", ("en", "de"), "ba dc"),
    ],
)
def test_translations_of_a_split_line_are_joined_by_the_languages(
    line: str, languages: tuple[str, str], expected: str
) -> None:
    config = translator(max_source_length=4, on_long_line="split").config
    splitting = Translator(Reverser(), Letters(), config, languages=languages)  # type: ignore[arg-type]
    assert list(splitting.translate([line])) == [expected]


def test_sentences_are_translated_one_by_one_with_the_spaces_of_the_line() -> None:
    line = "abc.  def! ghi"
    splitting, whole = translator(split_sentences=True), translator()
    assert list(splitting.translate([line, "", "ab"])) == ["cba  fed ihg", "", "ba"]
    assert list(whole.translate([line])) == ["ihgfedcba"]
    # A request decides for its line, and requirements are on the translation of the whole line.
    chosen = [Request(line, split_sentences=wanted) for wanted in (None, False, True)]
    results = ["cba  fed ihg", "ihgfedcba", "cba  fed ihg"]
    assert list(splitting.translate([*chosen, Request(line, prefix="i")])) == [*results, results[1]]
    assert list(whole.translate(chosen)) == [results[1], results[1], results[2]]
    assert splitting.counts.split == whole.counts.split == 0
    # Nothing of a text is cut: a sentence that does not fit is split, too.
    for treatment in ("split", "cut"):
        long = translator(split_sentences=True, max_source_length=4, on_long_line=treatment)
        assert list(long.translate(["abc. abc def. ab"])) == ["cba cba fed ba"]
        assert long.counts.split == 1


def test_the_parts_of_a_translation_are_its_sentences() -> None:
    [[translation]] = translator(split_sentences=True).translations(["abc.  def! ghi"])
    assert translation.parts() == [("abc.", "cba"), ("  def!", "  fed"), (" ghi", " ihg")]
    assert translation.hypothesis.output.count(EOS) == 3
    [[whole]] = translator().translations(["abc. def"])
    assert whole.parts() == [("abc. def", "fedcba")]


def test_a_text_keeps_its_paragraphs() -> None:
    text = "abc. def\n\nghi!\n"
    assert translator().translate_text(text) == "cba fed\n\nihg\n"
    assert translator().translate_text("") == ""


def test_lines_beyond_the_training_sentences_are_counted_unless_they_are_split() -> None:
    for splits, number in ((False, 2), (True, 0)):
        counting = translator(split_sentences=splits)
        counting.subwords.extremes = Extremes(max_tokens=4, max_sentence_ends=1)
        counting.subwords.sentence_ends = frozenset({4})  # an "a" stands for a full stop
        longest, longer, ends = "bcdef", "bcdefg", "aba"
        lines = ["a", longest, longer, ends, Request(longer, prefix="a")]
        assert len([*counting.translate(lines)]) == len(lines)
        assert counting.counts.beyond_training == number


def test_a_request_for_more_than_a_translation_is_cut_where_others_are_split() -> None:
    splitting = translator(max_source_length=4, on_long_line="split")
    lines = ["ab cd", Request("ab cd", prefix="c"), Request("abc", prefix="c")]
    assert list(splitting.translate(lines)) == ["ba dc", "cba", "cba"]
    counts = splitting.counts
    assert (counts.split, counts.truncated, counts.unsplittable) == (1, 1, 1)
    cutting = translator(max_source_length=4)
    assert list(cutting.translate(["ab cd", Request("ab cd", prefix="c")])) == ["cba", "cba"]
    assert (cutting.counts.truncated, cutting.counts.unsplittable) == (2, 1)


def test_lines_that_come_out_empty_are_counted() -> None:
    counting = translator()
    assert list(counting.translate(["?!", "", " ", "a", "ab ?"])) == ["", "", "", "a", "ba"]
    assert counting.counts.empty == 1


def test_minimum_bayes_risk_takes_what_the_others_agree_with() -> None:
    strategy = {"name": "beam", "stop": "all_finished"}
    plain, agreeing = translator(strategy=strategy), translator(strategy=strategy, mbr="chrf")
    for found, ranked in zip(
        plain.translations(["abcabc", ""], 4), agreeing.translations(["abcabc", ""], 4), strict=True
    ):
        texts = [it.text for it in found]
        values = expected_utilities(texts, metrics["chrf"])
        scores = [it.hypothesis.score for it in ranked]
        if texts != [""]:
            assert sorted(zip(values, texts, strict=True), reverse=True) == sorted(
                zip(scores, (it.text for it in ranked), strict=True), reverse=True
            )
        assert scores == sorted(scores, reverse=True)


def test_minimum_bayes_risk_decides_among_the_same_samples_however_many_are_listed() -> None:
    strategy = {"name": "sample", "samples": 20, "temperature": 3.0}
    agreeing, line = translator(strategy=strategy, mbr="chrf"), "abcab"
    [samples] = translator(strategy=strategy).search([line])
    texts = agreeing.subwords.decode_target([it.tokens for it in samples])
    assert len(set(texts)) < len(texts)
    values = expected_utilities(texts, metrics["chrf"])
    best = sorted(dict(zip(texts, values, strict=True)).items(), key=lambda it: -it[1])
    for count in (1, 4):
        [found] = agreeing.translations([line], count)
        assert [(it.text, it.hypothesis.score) for it in found] == best[:count]


def test_the_metric_of_the_consensus_is_that_of_the_target_language() -> None:
    config = build(SearchConfig, {"mbr": "bleu"}, "search")
    chinese = Translator(Reverser(), Letters(), config, languages=("en", "zh"))  # type: ignore[arg-type]
    assert chinese.config.mbr == replace(metrics["bleu"], tokenize="zh", effective_order=True)


@for_each(
    ("strategy", "most", "remedy"),
    [
        ({"name": "beam", "beam": 3}, 3, "raise search.strategy.beam to at least 4"),
        ({"name": "diverse_beam", "beam": 4}, 4, "raise search.strategy.beam to at least 5"),
        (
            {"name": "greedy"},
            1,
            "use --strategy beam --beam 2 (in Python strategy={'name': 'beam', 'beam': 2})",
        ),
        ({"name": "sample", "samples": 5}, 5, "raise search.strategy.samples to at least 6"),
    ],
)
def test_more_translations_than_the_strategy_finds_are_refused(
    strategy: dict[str, Any], most: int, remedy: str
) -> None:
    asked = translator(strategy=strategy, mbr="chrf")
    assert len(next(translator(strategy=strategy).translations(["abc"], most))) == most
    assert len(next(asked.translations(["abc"], most))) <= most
    with pytest.raises(NmtError) as error:
        next(asked.translations(["abc"], most + 1))
    assert str(error.value) == (
        f"{most + 1} translations of a line: {strategy['name']} finds at most {most}; "
        f"ask for fewer, or {remedy}"
    )
    with pytest.raises(NmtError, match=r"^0 translations of a line: ask for at least 1$"):
        asked.translations(["abc"], 0)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_without_gradients_and_then_as_before(training: bool) -> None:
    passing = translator()
    passing.model.train(training)
    for _ in passing.translate(["ab"]):
        assert passing.model.training == training
        assert torch.is_grad_enabled()
    assert passing.model.was_inference == [True]


@pytest.mark.parametrize("converted", [True, False])
def test_a_model_that_is_not_converted_can_be_trained_after_it_has_translated(
    converted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = architectures["transformer_tiny"].build(Letters.target_size, Letters.target_size, True)
    next(model.encoder.parameters()).requires_grad_(False)  # one that is frozen
    if converted:
        convert(model, "fp32", torch.device("cpu"))
    start, was_inference = model.start, set()

    def watched(source: Tensor) -> State:
        was_inference.add(torch.is_inference_mode_enabled())
        return start(source)

    monkeypatch.setattr(model, "start", watched)
    translating = Translator(model, Letters(), SearchConfig(max_length_offset=1))  # type: ignore[arg-type]
    assert len(list(translating.translate(["abc"]))) == 1
    assert was_inference == {converted}
    if not converted:
        model(torch.tensor([[5, EOS]]), torch.tensor([[BOS, 5]])).sum().backward()
        assert model.output.weight.grad is not None


def test_the_mode_is_restored_after_an_error() -> None:
    failing = translator()
    failing.model.train()
    failing.model.row = lambda sentence, prefix: [float("nan")] * Letters.target_size  # type: ignore[assignment]
    with pytest.raises(NmtError, match="step 1 of the search"):
        failing.search(["a"])
    assert failing.model.training


def test_the_precision_is_that_of_the_models_products() -> None:
    class Multiplying(Reverser):
        def step(self, tokens: Tensor, state: State) -> Tensor:
            self.product = torch.ones(2, 2) @ torch.ones(2, 2)
            return super().step(tokens, state)

    model, config = Multiplying(), translator().config
    for execution, expected in (
        (Execution(), torch.float32),
        (Execution(precision="bf16"), torch.bfloat16),
    ):
        half = Translator(model, Letters(), config, execution)  # type: ignore[arg-type]
        assert list(half.translate(["abc"])) == ["cba"]
        assert model.product.dtype == expected


@for_each(
    ("key", "value", "message"),
    [
        ("max_length_ratio", -0.5, "max_length_ratio must be at least 0, not -0.5"),
        ("max_length_offset", 0, "max_length_offset must be at least 1, not 0"),
        ("max_source_length", 1, "max_source_length must be at least 2, not 1"),
        ("coverage_penalty", -1, "coverage_penalty must be at least 0, not -1"),
        ("batch_tokens", 0, "batch_tokens must be at least 1, not 0"),
        ("window", 0, "window must be at least 1, not 0"),
        ("mbr", "comet", "mbr: comet needs the source; choose chrf or bleu"),
    ],
)
def test_a_mistaken_section_is_one_line(key: str, value: float, message: str) -> None:
    with pytest.raises(NmtError) as error:
        build(SearchConfig, {key: value}, "search")
    assert str(error.value) == f"search: {message}"
