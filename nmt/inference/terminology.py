"""Glossaries: files of terms whose translations every line requires.

A glossary is a text of tab-separated lines, or TBX (ISO 30042): TBX-Basic, whose concepts are
``termEntry`` elements, or version 3, whose concepts are ``conceptEntry`` elements.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from nmt.data.directions import Direction
from nmt.data.vocabulary import UNK
from nmt.errors import NmtError
from nmt.inference.splitting import SENTENCEX
from nmt.inference.terms import Terms
from nmt.io.lines import COMPRESSED, Lines, decompressed, named_damage
from nmt.messages import warn
from nmt.search.lexical import placing_phrases
from nmt.subwords.subwords import Subwords
from nmt.subwords.words import as_read

if TYPE_CHECKING:
    from nmt.inference.lines import LineTranslator

CONCEPTS = ("termEntry", "conceptEntry")

LANGUAGES = ("langSet", "langSec")

TERMS = ("tig", "ntig", "termSec")

STATUS, PREFERRED = "administrativeStatus", "preferredTerm"

DISCOURAGED = ("deprecatedTerm", "supersededTerm")
"""Beginnings of the administrative status of terms that nobody should write."""


def use_terminology(path: Path, translators: Sequence[LineTranslator]) -> None:
    """Let translators require the translations of a glossary's terms in every line.

    The translators load the model into this package, which searches for lines with terms.

    Raises:
        OSError: the file cannot be read.
        NmtError: the glossary is damaged, or has no terms in the languages of the translators; the
            strategy of a translator cannot place phrases; or there is only an export.
    """
    directions = chain.from_iterable(map(_directions, translators))
    tables = read_terminology(path, [*dict.fromkeys(directions)])
    for translator in translators:
        placing_phrases(translator.config.strategy)
        _ = translator.in_torch
        translator.terminology = {
            direction: Terms(_known(tables[direction], translator.subwords, path))
            for direction in _directions(translator)
        }


def _directions(translator: LineTranslator) -> Sequence[Direction]:
    """Return the direction of a translator, or the trained ones if each line chooses."""
    return translator.directions.trained if translator.needs_target else [translator.languages]


def _known(table: dict[str, str], subwords: Subwords, path: Path) -> dict[str, str]:
    """Return the terms whose translations the model can write; warn of all others."""
    texts = [translation or term for term, translation in table.items()]
    rows = subwords.encode_phrases(texts)
    unknown = [text for text, ids in zip(texts, rows, strict=True) if UNK in ids]
    if unknown:
        warn(
            f"{path}: the vocabulary lacks characters of {len(unknown)} translations, such as "
            f"{unknown[0]!r}; their terms are left out"
        )
    return {
        term: translation
        for (term, translation), ids in zip(table.items(), rows, strict=True)
        if UNK not in ids
    }


def read_terminology(
    path: Path, directions: Sequence[Direction]
) -> dict[Direction, dict[str, str]]:
    """Return the translations of the terms of a glossary, for each direction.

    The translation of a term that stays as it is may be empty.

    Args:
        path: TBX if its name ends with .tbx or .xml, else tab-separated lines: a term and its
            translation, or a term alone, which stays as it is.
        directions: the directions; a single one for tab-separated lines.

    Raises:
        OSError: the file cannot be read.
        NmtError: the file is damaged, or has no terms of the directions.
    """
    plain = path.with_suffix("") if path.suffix in COMPRESSED else path
    if plain.suffix in (".tbx", ".xml"):
        return _read_tbx(path, directions)
    if len(directions) > 1:
        raise NmtError(
            f"{path}: tab-separated lines do not say which of {_names(directions)} they are for; "
            "choose one language with --target-lang, or give TBX, which names its languages"
        )
    return {directions[0]: _read_lines(path)}


def _read_lines(path: Path) -> dict[str, str]:
    """Return the translations of the terms of tab-separated lines, empty for a term alone."""
    table: dict[str, str] = {}
    for number, line in enumerate(Lines.open(path).read(), start=1):
        term, *translations = map(as_read, line.split("\t"))
        if not term and not any(translations):
            continue
        if not term or len(translations) > 1:
            raise NmtError(
                f"{path}:{number}: expected a term, a tab and its translation, or a term alone, "
                f"not {line!r}"
            )
        translation = "".join(translations)
        if table.setdefault(term, translation) != translation:
            raise NmtError(
                f"{path}:{number}: {term!r} already has the translation {table[term]!r}; remove "
                "one of the two lines"
            )
    if not table:
        raise NmtError(f"{path}: has no terms; give one a line, with a tab before its translation")
    return table


def _read_tbx(path: Path, directions: Sequence[Direction]) -> dict[Direction, dict[str, str]]:
    """Return the translations of terms by direction; the first concept of several counts."""
    tables: dict[Direction, dict[str, str]] = {direction: {} for direction in directions}
    builder, parser = TreeBuilder(), expat.ParserCreate()
    codes: dict[str, None] = {}

    def start(tag: str, attributes: dict[str, str]) -> None:
        """Begin an element, without the prefix of its namespace."""
        builder.start(tag.rpartition(":")[2], attributes)

    def end(tag: str) -> None:
        """End an element; keep the terms of a concept, and not its elements."""
        concept = builder.end(tag.rpartition(":")[2])
        if concept.tag not in CONCEPTS:
            return
        codes.update(dict.fromkeys(part.get("xml:lang", "") for part in concept))
        for (source, target), table in tables.items():
            written = (
                text
                for text, status in _terms(concept, target)
                if not status.startswith(DISCOURAGED)
            )
            if translation := next(written, None):
                for term, _ in _terms(concept, source):
                    table.setdefault(term, translation)
        concept.clear()

    def refuse(*_: object) -> None:
        """Refuse an entity: it may stand for gigabytes, or for another file."""
        raise NmtError(
            f"{path}:{parser.CurrentLineNumber}: declares or uses an entity; write its text instead"
        )

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = parser.SkippedEntityHandler = refuse
    try:
        with path.open("rb") as file, named_damage(path):
            parser.ParseFile(decompressed(file, path))
    except expat.ExpatError as error:
        raise NmtError(
            f"{path}:{error.lineno}: not XML: {expat.ErrorString(error.code)}; mend it, or export "
            "the glossary again as TBX"
        ) from None
    if not any(tables.values()):
        languages = ", ".join(filter(None, codes)) or "none"
        raise NmtError(
            f"{path}: no concept has terms of {_names(directions)}; languages of its concepts: "
            f"{languages}; give TBX with the languages of the model"
        )
    return tables


def _terms(concept: Element, language: str) -> list[tuple[str, str]]:
    """Return the terms of a concept in a language, preferred ones first, and their status."""
    ranked = []
    for section in concept:
        code = section.get("xml:lang", "")
        if section.tag not in LANGUAGES or not _agree(code, language):
            continue
        for part in section:
            term = part.find(".//term") if part.tag in TERMS else None
            text = as_read("".join(term.itertext())) if term is not None else ""
            # An element, or a note of this type.
            notes = (note for note in part.iter() if STATUS in (note.tag, note.get("type")))
            status = "".join(note.text or "" for note in notes).strip()
            if text:
                ranked.append((code != language, not status.startswith(PREFERRED), text, status))
    return [(text, status) for _, _, text, status in sorted(ranked, key=itemgetter(0, 1))]


def _agree(one: str, other: str) -> bool:
    """Return whether two codes may mean the same, as en and en-US, but not pt-BR and pt-PT."""
    first, second = _subtags(one), _subtags(other)
    return all(second.get(kind, subtag) == subtag for kind, subtag in first.items())


def _subtags(code: str) -> dict[int, str]:
    """Return the language of a code by 0, a script by 4 and a region by 2 letters."""
    language, *subtags = re.split("[-_]", code.lower())
    return {len(subtag): subtag for subtag in subtags} | {0: SENTENCEX.get(language, language)}


def _names(directions: Sequence[Direction]) -> str:
    return ", ".join(map("-".join, directions))
