"""sacreBLEU's tokenisers: one for each target language, and BLEU with any of them.

The default of sacreBLEU, 13a, finds words between spaces: it takes a sentence of Japanese for one
word, and then BLEU is 0 for nearly every translation.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any, Final

from sacrebleu.metrics.bleu import BLEU

from nmt import languages
from nmt.errors import NmtError
from nmt.recipe.registry import unknown

AUTO: Final = "auto"
"""Stands for the tokeniser of the target language; for 13a where the language is not known."""

_BY_SCRIPT = {
    "Hani": "zh",
    "Hans": "zh",
    "Hant": "zh",
    "Jpan": "ja-mecab",
    "Kore": "ko-mecab",
    "Hang": "ko-mecab",
    "Thai": "char",
    "Laoo": "char",
    "Khmr": "char",
    "Mymr": "char",
}
"""As sacreBLEU recommends where it has a tokeniser of the language's own."""

_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}
"""Tokenisers that need packages, and the extra of sacreBLEU that brings them."""


def check_tokenizer(name: str) -> None:
    """Raises a ValueError where there is no tokeniser of that name."""
    known = [AUTO, *BLEU.TOKENIZERS]
    if name not in known:
        raise ValueError(unknown("tokenizer", name, known))


def tokenizer_for(target_lang: str) -> str:
    """The tokeniser of a target language.

    Where its package is not installed that is "char", and a line on stderr says so once.
    """
    name = _BY_SCRIPT.get(languages.scripts(target_lang)[0], BLEU.TOKENIZER_DEFAULT)
    return _installed(name) if name in _EXTRAS else name


def bleu(tokenize: str, **settings: Any) -> BLEU:
    """Return the BLEU of sacreBLEU with a tokeniser.

    Raises:
        NmtError: a package that the tokeniser needs is not installed.
    """
    name = BLEU.TOKENIZER_DEFAULT if tokenize == AUTO else tokenize
    try:
        return BLEU(tokenize=name, **settings)
    except (AssertionError, ImportError, RuntimeError) as error:
        raise NmtError(f"tokenizer {name}: {' '.join(str(error).split())}") from None


@cache
def _installed(name: str) -> str:
    try:
        bleu(name)
    except NmtError:
        if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts
            print(
                f"nmt: warning: {name} is not installed, so BLEU and GLEU count characters (char); "
                f"for words: pip install 'sacrebleu[{_EXTRAS[name]}]'",
                file=sys.stderr,
            )
        return "char"
    return name
