"""The direction of a translator, and the choice of another direction of the same model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from nmt.data.directions import Direction, Directions
from nmt.inference.config import SearchConfig
from nmt.inference.request import Request, naming_line
from nmt.messages import warn
from nmt.preprocess.subwords import Subwords
from nmt.preprocess.tags import directions_of, tagged

AnyDirected = TypeVar("AnyDirected", bound="Directed")
Result = TypeVar("Result")


class Directed:
    """The languages of a translator, and the values that depend on them.

    Attributes:
        subwords: subwords, which put the tags of the direction before every sentence.
        config: settings of the search, with those of the target language.
        languages: source and target language.
    """

    def __init__(self, subwords: Subwords, config: SearchConfig, languages: Direction) -> None:
        self.subwords = subwords
        self.config = config.for_language(languages[1])
        self.languages = languages
        self._general = subwords, config, languages
        self._chosen_source: str | None = None
        self._by_target: dict[str | None, Any] = {}

    @property
    def directions(self) -> Directions:
        """The directions of the model: those trained or, of other models, those of its tags."""
        subwords, _, languages = self._general
        return directions_of(subwords, languages)

    @property
    def needs_target(self) -> bool:
        """Whether no target language was chosen; with several, each line must name one."""
        return bool(self.subwords.directions) and self.subwords.tags == ([], [])

    def into(
        self: AnyDirected, target: str | None = None, source: str | None = None
    ) -> AnyDirected:
        """Return a translator of the same model for a direction.

        Args:
            target: target language; None for the only one. If the text may begin with tags, as for
                a model of OPUS-MT, None leaves the tags to the text.
            source: source language; None for any. If the direction was not trained, a warning says
                so.

        Raises:
            NmtError: the model does not have these languages.
        """
        subwords, config, _ = self._general
        if target is None and source is None and subwords.directions is None:
            return self
        direction = self.directions.choose(target, source)
        is_main = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
        if direction not in self.directions.trained and is_main:
            warn(f"{direction[0]} to {direction[1]} was not trained: the translation is zero-shot")
        chosen = copy.copy(self)
        chosen.subwords = tagged(subwords, direction)
        chosen.config = config.for_language(direction[1])
        chosen.languages = direction
        chosen._chosen_source = source
        chosen._by_target = {}
        return chosen

    def into_target(self: AnyDirected, target: str | None) -> AnyDirected:
        """Return the translator of a line that chooses its target language, made only once.

        The source language stays if it was chosen.

        Args:
            target: target language; None for that of this translator.

        Raises:
            NmtError: the model does not have the language, it is the chosen source language, or the
                model needs one.
        """
        if target is None and not self.needs_target:
            return self
        if target not in self._by_target:
            self._by_target[target] = self.into(target, self._chosen_source)
        chosen: AnyDirected = self._by_target[target]
        return chosen

    def by_direction(self: AnyDirected) -> list[AnyDirected]:
        """Return a translator for each trained direction."""
        trained = self.directions.trained
        return [self] if len(trained) == 1 else [self.into(one[1], one[0]) for one in trained]


def by_target(
    translator: AnyDirected,
    requests: Sequence[Request],
    translate: Callable[[AnyDirected, list[Request]], Iterable[Result]],
) -> list[Result]:
    """Return the result of each request from the translator of its target language.

    Args:
        translator: translator of the requests that name no target language.
        requests: lines; a blank one needs no language.
        translate: returns the results of requests with the same target language.

    Raises:
        NmtError: the model does not have a language.
    """
    any_target = translator.directions.targets[0] if translator.needs_target else None
    targets = [
        request.target_lang or (None if request.text.strip() else any_target)
        for request in requests
    ]
    results: dict[int, Result] = {}
    for target in dict.fromkeys(targets):
        chosen = [at for at, wanted in enumerate(targets) if wanted == target]
        with naming_line(requests[chosen[0]].text):
            of_this_target = translator.into_target(target)
        results.update(
            zip(chosen, translate(of_this_target, [requests[at] for at in chosen]), strict=True)
        )
    return [results[at] for at in range(len(requests))]
