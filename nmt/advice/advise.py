"""From a corpus to advice: look at the text, measure the machine, and decide on the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from nmt import __version__, languages
from nmt.advice import facts as held_out
from nmt.advice.facts import Languages, Pair, Survey, compatibility_characters, survey
from nmt.advice.machine import Machine, Trial, make_trial, target_tokens_per_second
from nmt.advice.rules import (
    LEAST_TOKENS,
    SIZES,
    CorpusFacts,
    Plan,
    RecipeValue,
    as_text,
    candidates,
    choices,
    fits,
    plan,
    subword_sampling,
    times,
)
from nmt.errors import NmtError
from nmt.io.files import check_writable, named, whole_file
from nmt.messages import duration, warn
from nmt.preprocess.cleaning.tokenization import kind_of, warn_of_tokens
from nmt.preprocess.config import PreprocessConfig
from nmt.preprocess.corpus import Bitext
from nmt.recipe.config import build
from nmt.runtime.distributed import join
from nmt.runtime.machine import is_out_of_memory
from nmt.subwords.learning import vocab_size_for

Say = Callable[[str], None]

LITTLE = 5000
"""With fewer distinct pairs, the advice says what to expect from so little text."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recipe, and the held-out sets that it needs."""

    values: list[RecipeValue]
    head: list[str]
    """Lines of comment before the first value."""
    languages: Languages
    new_sets: dict[str, list[Pair]]
    """Pairs to set aside, by split."""

    @property
    def text(self) -> str:
        """The recipe as YAML."""
        return as_text(self.values, self.head)

    def write(self, output: Path) -> list[Path]:
        """Write the held-out sets and the recipe, and return the files."""
        # If the recipe cannot be written, the sets are removed again.
        with held_out.written(self.new_sets, self.languages) as paths:
            output.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(output) as partial:
                partial.write_text(self.text, encoding="utf-8")
        return [*paths, output]


def advise(
    train: Sequence[str],
    languages: Languages,
    minutes: float | None,
    say: Say,
    writes: bool = True,
    given: Mapping[str, str] = MappingProxyType({}),
) -> Advice:
    """Return advice for a corpus on this machine.

    Args:
        train: prefixes of the training corpora.
        languages: source and target.
        minutes: limit of the training, if there is one.
        say: prints a line for people.
        writes: whether the advice will be written.
        given: prefixes of the held-out sets that the user gives, by split.

    Raises:
        NmtError: the corpus or a given set cannot be read, the corpus is too small, or a held-out
            set would replace a file.
        OSError: a held-out set could not be written.
    """
    names = {"source_lang": languages[0], "target_lang": languages[1]}
    build(PreprocessConfig, names, "preprocess")  # refuses invalid languages
    bitexts = [Bitext.find(path, *languages) for path in train]
    present = _present_sets(train, bitexts, languages, given)
    text = survey(bitexts)
    missing = [split for split, path in present.items() if path is None]
    new_sets = _new_sets(missing, text, bitexts, languages, writes) if missing else {}
    sets = {split: path or str(held_out.DIRECTORY / split) for split, path in present.items()}
    pairs = {split: len(chosen) for split, chosen in new_sets.items()}
    pairs |= {split: _count(path, languages) for split, path in present.items() if path}
    with TemporaryDirectory(prefix="nmt-init-") as name, named(Path(name).parent, Path(name)):
        scratch = Path(name)
        trial = _trial(scratch, text, languages)
        facts = CorpusFacts(
            source_lang=languages[0],
            target_lang=languages[1],
            train=tuple(train),
            valid=sets["valid"],
            test=sets["test"],
            pairs=text.pairs,
            distinct=text.distinct,
            is_counted=text.is_counted,
            target_tokens=trial.mean_lengths[1],
            valid_pairs=pairs["valid"],
            # A sample has too little text for the vocabulary of the whole corpus.
            vocab_size=trial.vocab_size
            if text.is_whole
            else max(trial.vocab_size, vocab_size_for(text.distinct)),
            # The rest of the text may have characters that the sample lacks.
            byte_fallback=trial.byte_fallback or not text.is_whole,
            compatibility=compatibility_characters(pair.target for pair in text.sample),
        )
        origins = dict.fromkeys(new_sets, "set aside from train") | dict.fromkeys(given, "named")
        sides = [pair.source for pair in text.sample], [pair.target for pair in text.sample]
        kinds = {name: kind_of(side) for name, side in zip(languages, sides, strict=True)}
        _show_corpus(facts, trial, origins, pairs, kinds, say)
        machine, speeds = _measure(scratch, trial, facts, minutes, say)
    chosen = _plan(facts, machine, speeds, minutes)
    return Advice(
        values=list(choices(facts, chosen, machine.device)),
        head=_head(facts, machine, chosen),
        languages=languages,
        new_sets=new_sets,
    )


def _present_sets(
    train: Sequence[str],
    bitexts: Sequence[Bitext],
    languages: Languages,
    given: Mapping[str, str],
) -> dict[str, str | None]:
    """Return the held-out sets that are given or found, by split; None for a missing set."""
    others: list[Bitext] = []
    for path in given.values():
        others.append(held_out.given_set(path, bitexts, others, languages))
    return {
        split: given.get(split) or held_out.find(split, train, bitexts, languages, others)
        for split in held_out.NAMES
    }


def _new_sets(
    splits: Sequence[str],
    text: Survey,
    bitexts: Sequence[Bitext],
    languages: Languages,
    writes: bool,
) -> dict[str, list[Pair]]:
    """Return the pairs to set aside, by split, after checking that they can be written."""
    held_out.check_free(splits, languages)
    if writes:
        check_writable(held_out.DIRECTORY.absolute())
    return held_out.choose(text, bitexts, splits)


def _count(path: str, languages: Languages) -> int:
    return sum(
        len(chunk.source) for chunk in Bitext.find(path, *languages).chunks(on_invalid_utf8=None)
    )


def _trial(scratch: Path, text: Survey, languages: Languages) -> Trial:
    section = {
        "source_lang": languages[0],
        "target_lang": languages[1],
        "vocab_size": vocab_size_for(text.distinct),
    }
    return make_trial(scratch, text.sample, section)


def _measure(
    scratch: Path,
    trial: Trial,
    facts: CorpusFacts,
    minutes: float | None,
    say: Say,
) -> tuple[Machine, dict[str, float]]:
    """Return the machine, and the speeds of models, from the largest down to a model that fits."""
    speeds: dict[str, float] = {}
    with join() as world:
        machine = Machine.here(world.device)
        say(f"machine: {machine.name}, {machine.memory / 1e9:,.0f} GB, {machine.precision}")
        for size in candidates(facts.distinct):
            try:
                speeds[size.name] = target_tokens_per_second(
                    trial,
                    {"arch": size.arch, **size.model},
                    {
                        "tokens_per_update": LEAST_TOKENS[machine.device],
                        "optimizer": size.optimizer,
                        "subword_sampling": subword_sampling(facts.distinct),
                    },
                    facts.vocab_size,
                    scratch / size.name,
                    world,
                )
            except Exception as error:
                if not (isinstance(error, NmtError) or is_out_of_memory(error)):
                    raise
                say(f"the {size.name} model does not fit: {error}")
                continue
            say(f"the {size.name} model trains on {speeds[size.name]:,.0f} target tokens/s")
            if fits(size, speeds[size.name], minutes):
                break
    if not speeds:
        raise NmtError("no model fits into the memory of this machine")
    return machine, speeds


def _plan(
    facts: CorpusFacts, machine: Machine, speeds: dict[str, float], minutes: float | None
) -> Plan:
    """Return the plan; warn if the measured speed may be too low, or some text is never seen."""
    chosen = plan(facts, speeds, machine.device, minutes)
    if minutes is None:
        return chosen
    if machine.is_busy:
        warn(
            "other programs have used the cores in the last minute, so the speed measured may be "
            "too low; run nmt init again on idle cores, or both nmt init and nmt train with "
            "OMP_NUM_THREADS=1, on the one core that is free"
        )
    if chosen.epochs < 0.995:  # else it is shown as the whole text
        smaller = " or choose a smaller model" if chosen.size is not SIZES[0] else ""
        warn(
            f"in {duration(60 * minutes)} the {chosen.size.name} model sees only "
            f"{chosen.epochs:.1%} of the training text; give more --minutes{smaller}"
        )
    return chosen


def _show_corpus(
    facts: CorpusFacts,
    trial: Trial,
    origins: dict[str, str],
    pairs: dict[str, int],
    kinds: dict[str, str | None],
    say: Say,
) -> None:
    """Print the facts about the corpus; a held-out set without an origin was found."""
    source, target = trial.mean_lengths
    say(f"train: {facts.pairs:,} pairs, {facts.repeated} of them repeated")
    for split, path in (("valid", facts.valid), ("test", facts.test)):
        say(f"{split}: {pairs[split]:,} pairs, {path}, {origins.get(split, 'found')}")
    for language, length in ((facts.source_lang, source), (facts.target_lang, target)):
        written = "/".join(languages.scripts(language))
        kind = kinds[language] or (
            "" if languages.has_spaces(language) else "no spaces between words"
        )
        say(f"{language}: {length:.1f} subwords a sentence, {written}{kind and f', {kind}'}")
    for language, treatment in kinds.items():
        if treatment:
            warn_of_tokens(f"the {language} text", treatment)


def _head(facts: CorpusFacts, machine: Machine, plan: Plan) -> list[str]:
    """Return the comment at the head of the recipe: corpus, machine, and what to expect when."""
    warm_up = duration(plan.seconds(plan.warmup_updates))
    end = duration(plan.seconds(plan.updates))
    head = [
        f"Written by nmt init {__version__} for {facts.distinct_pairs}, "
        f"{facts.source_lang} to {facts.target_lang}, on {machine.name} in {machine.precision}.",
        f"Expect: warm-up ends after {warm_up}, training after {end}, without validation;",
        f"the model then has seen the text {times(plan.epochs)}. BLEU is near 0 during warm-up.",
    ]
    if facts.distinct < LITTLE:
        head.append(
            f"Little text: from {LITTLE:,} pairs of Multi30k a model learned to BLEU 18. More text "
            "helps most, also of one language (docs/guides/small-data.md)."
        )
    return head
