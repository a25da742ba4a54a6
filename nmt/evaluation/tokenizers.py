"""Choose sacreBLEU's tokeniser for a target language, and make BLEU with any tokeniser.

The default of sacreBLEU, 13a, splits text at spaces and punctuation. Most of a Japanese sentence is
then one word, and BLEU is 0 for nearly every translation.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from nmt import languages
from nmt.errors import NmtError
from nmt.evaluation.testsets import reason
from nmt.messages import warn
from nmt.recipe.registry import unknown

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

AUTO: Final = "auto"
"""Stands for the tokeniser of the target language; for 13a if the language is not known."""

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
"""Tokeniser for each script; sacreBLEU's recommendation for languages with a tokeniser."""

_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}
"""Tokenisers that need packages, and the extra of sacreBLEU that installs these."""


def check_tokenizer(name: str) -> None:
    """Check that a tokeniser exists.

    Raises:
        ValueError: there is no tokeniser of that name.
    """
    if name in (AUTO, "none"):  # without sacreBLEU, which takes a while to import
        return
    from sacrebleu.metrics.bleu import BLEU

    if name not in (known := [AUTO, *BLEU.TOKENIZERS]):
        raise ValueError(unknown("tokenizer", name, known))


def tokenizer_for(target_lang: str) -> str:
    """Return the name of the tokeniser of a target language.

    If its package is not installed, return "char" and print one warning on stderr.
    """
    from sacrebleu.metrics.bleu import BLEU

    name = _BY_SCRIPT.get(languages.scripts(target_lang)[0], BLEU.TOKENIZER_DEFAULT)
    return _installed(name) if name in _EXTRAS else name


def bleu(tokenize: str, **settings: Any) -> BLEU:
    """Return sacreBLEU's BLEU with a tokeniser.

    Raises:
        NmtError: a package that the tokeniser needs is not installed, or its model cannot be
            fetched.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.utils import SACREBLEU_DIR

    name = BLEU.TOKENIZER_DEFAULT if tokenize == AUTO else tokenize
    try:
        return BLEU(tokenize=name, **settings)
    except (OSError, SystemExit) as error:
        raise NmtError(
            f"tokenizer {name}: its model cannot be fetched: {reason(error)}; remove "
            f"{SACREBLEU_DIR}/models before another attempt; without network access, copy that "
            "directory from another machine, or choose another tokenize"
        ) from None
    except (AssertionError, ImportError, RuntimeError) as error:
        raise NmtError(f"tokenizer {name}: {' '.join(str(error).split())}") from None


@cache
def _installed(name: str) -> str:
    try:
        bleu(name)
    except NmtError:
        if os.environ.get("RANK", "0") == "0":  # the first process of torchrun
            warn(
                f"{name} is not installed, so BLEU and GLEU count characters (char); "
                f"for words: pip install 'sacrebleu[{_EXTRAS[name]}]'"
            )
        return "char"
    return name
