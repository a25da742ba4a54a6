"""Cleaning step: pairs in other languages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from nmt.errors import NmtError, install
from nmt.preprocess.cleaning_steps import Filtering, steps

NO_LANGUAGE = "zxx"
"""Code of text in no language, such as numbers and addresses."""


@steps.register("language")
@dataclass(frozen=True, kw_only=True)
class Language(Filtering):
    """Drops pairs with a side that is most likely in another language than its own.

    py3langid (``pip install 'nmt-toolkit[language]'``) tells the language of each side by itself.
    Short text is kept, because its language is rarely certain, and so is text in no language, such
    as numbers and addresses.
    """

    source: tuple[str, ...] = ()
    """Languages in which the source may be, as codes of py3langid (en, de, zh, ...); by default the
    source language. Give several where neighbours are hard to tell apart: [hr, bs, sr]."""
    target: tuple[str, ...] = ()
    """Languages in which the target may be; by default the target language."""
    min_probability: float = 0.5
    """A side is dropped only if another language has at least this probability."""

    def __post_init__(self) -> None:
        if not 0 < self.min_probability <= 1:
            raise ValueError(
                f"min_probability must be more than 0 and at most 1, not {self.min_probability}"
            )

    def for_languages(self, source_lang: str, target_lang: str) -> Language:
        """Return the step with the languages of the recipe where none are set.

        Raises:
            NmtError: py3langid is missing, or does not know a language.
        """
        step = replace(
            self,
            source=self.source or (_without_region(source_lang),),
            target=self.target or (_without_region(target_lang),),
        )
        for side in ("source", "target"):
            _check(side, getattr(step, side))
        return step

    def keep(self, source: list[str], target: list[str], held_out: frozenset[str]) -> list[bool]:
        """Return for every pair whether neither side is in another language."""
        return [
            self._passes(one, self.source) and self._passes(other, self.target)
            for one, other in zip(source, target, strict=True)
        ]

    def _passes(self, line: str, languages: tuple[str, ...]) -> bool:
        if not languages:
            return True
        language, probability = _identifier().classify(line)
        return language in (*languages, NO_LANGUAGE) or probability < self.min_probability


def _without_region(code: str) -> str:
    return code.replace("_", "-").partition("-")[0].lower()


def _check(side: str, languages: Iterable[str]) -> None:
    known = sorted({*_identifier().labels} - {NO_LANGUAGE})
    for language in languages:
        if language not in known:
            raise NmtError(
                f"preprocess.clean: language knows no {side} language {language!r}; set the "
                f"{side} of the step to some of {', '.join(known)}"
            )


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise NmtError(
            f"preprocess.clean: language needs py3langid; {install('language')}"
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
