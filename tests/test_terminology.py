"""Glossaries: reading them, finding their terms, and requiring their translations."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from test_serve import call, server

import nmt as package
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run
from nmt.inference import LineTranslator, Request
from nmt.inference.terminology import read_terminology
from nmt.inference.terms import Terms
from nmt.search import strategies

EN_DE = ("en", "de")

BASIC = """<?xml version="1.0"?>
<!DOCTYPE martif SYSTEM "TBXBasiccoreStructV02.dtd">
<martif type="TBX-Basic" xml:lang="en"><text><body>
<termEntry id="1">
 <descrip type="definition">an animal; <hi>term</hi></descrip>
 <langSet xml:lang="en-US"><tig><term>dog</term></tig><ntig><termGrp><term>hound</term>
 </termGrp></ntig></langSet>
 <langSet xml:lang="de"><tig><term>Köter</term>
  <termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig>
  <tig><term>Haushund</term></tig>
  <tig><term>Hund</term>
  <termNote type="administrativeStatus">preferredTerm-admn-sts</termNote></tig></langSet>
 <langSet xml:lang="fr"><tig><term>chien</term></tig></langSet>
</termEntry>
<termEntry id="2">
 <langSet xml:lang="en"><tig><term>bank</term></tig></langSet>
 <langSet xml:lang="de"><tig><term>Bank</term></tig></langSet>
</termEntry>
<termEntry id="3">
 <langSet xml:lang="en"><tig><term>bank</term></tig></langSet>
 <langSet xml:lang="de"><tig><term>Ufer</term></tig></langSet>
</termEntry>
<termEntry id="4">
 <langSet xml:lang="en"><tig><term>cur</term></tig></langSet>
 <langSet xml:lang="de"><tig><term>Köter</term>
  <termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></tig></langSet>
</termEntry>
</body></text></martif>
"""

VERSION_3 = """<tbx:tbx xmlns:tbx="urn:iso:std:iso:30042:ed-2" xmlns:min="x" style="dct">
<tbx:text><tbx:body>
<tbx:conceptEntry><tbx:langSec xml:lang="pt"><tbx:termSec><tbx:term>trem</tbx:term></tbx:termSec>
</tbx:langSec><tbx:langSec xml:lang="pt-PT"><tbx:termSec><tbx:term>comboio</tbx:term>
<min:administrativeStatus>preferredTerm-admn-sts</min:administrativeStatus></tbx:termSec>
</tbx:langSec><tbx:langSec xml:lang="en"><tbx:termSec><tbx:term>train</tbx:term></tbx:termSec>
</tbx:langSec></tbx:conceptEntry></tbx:body></tbx:text></tbx:tbx>
"""

LINE = "dog hound bank cur train"


@for_each(
    ("line", "terms", "required"),
    [
        ("the dogs and a dog.", {"dog": "Hund"}, ["Hund"]),
        ("the dogs", {"dog": "Hund"}, []),
        ("dog-house", {"dog": "Hund"}, ["Hund"]),
        ("dog, Dog", {"Dog": "Rex"}, ["Rex"]),
        ("a machine learning model", {"machine": "x", "machine learning": "ML"}, ["ML"]),
        ("a dog and a dog", {"dog": "Hund", "a": "ein", "and": "und"}, ["ein", "Hund", "und"]),
        # A capital begins a sentence, and no other word.
        ("Dogs bark", {"dogs": "Hunde"}, ["Hunde"]),
        ("“Dogs bark”", {"dogs": "Hunde"}, ["Hunde"]),
        ("It barks. Dogs do!", {"dogs": "Hunde"}, ["Hunde"]),
        ("In May", {"may": "dürfen"}, []),
        ("Mr. Smith sat.", {"smith": "Schmied"}, []),
        ("dogs", {"Dogs": "Hunde"}, []),
        ("Machine Learning", {"machine learning": "ML", "machine": "Maschine"}, ["Maschine"]),
        # A term without a translation, or with itself, stays as it is in the line.
        ("Ipod and ipod", {"ipod": ""}, ["Ipod", "ipod"]),
        ("use nmt", {"nmt": "nmt"}, ["nmt"]),
        # Scripts without spaces have terms within words; their Latin words are whole.
        (
            "我去北京大学",
            {"北京": "Peking", "北京大学": "Universität Peking"},
            ["Universität Peking"],
        ),
        ("用AI发MAIL", {"AI": "KI", "MA": "x"}, ["KI"]),
        ("กินข้าว", {"ข้าว": "rice", "ข": "x"}, ["rice"]),
        ("रामी घर", {"राम": "Ram", "मी": "x"}, []),
        ("a  b\u00a0c", {"a b c": "x"}, ["x"]),
        ("", {"a": "b"}, []),
        ("a", {}, []),
    ],
)
def test_terms_are_found_as_whole_words_the_longest_first(
    line: str, terms: dict[str, str], required: list[str]
) -> None:
    assert Terms(terms).required(line, "en") == required
    assert Request(line, terminology=terms).required("en") == required


@for_each(
    ("name", "text", "direction", "required"),
    [
        ("a.tsv", "dog\tHund\n\nhound\n", EN_DE, ["Hund", "hound"]),
        ("a.txt.gz", "\ufeffdog\tHund\r\ndog\tHund\n", EN_DE, ["Hund"]),
        ("a.tbx", BASIC, EN_DE, ["Hund", "Bank"]),
        ("a.xml.gz", BASIC, ("eng_Latn", "deu_Latn"), ["Hund", "Bank"]),
        ("a.tbx", BASIC, ("en-GB", "fr"), []),
        ("a.tbx", BASIC, ("en_US", "fr-CA"), ["chien"]),
        ("a.tbx", VERSION_3, ("en", "pt-BR"), ["trem"]),
        ("a.tbx", VERSION_3, ("en", "pt-PT"), ["comboio"]),
    ],
)
def test_a_glossary_has_the_terms_of_a_direction(
    tmp_path: Path, name: str, text: str, direction: tuple[str, str], required: list[str]
) -> None:
    path = tmp_path / name
    opened: Any = gzip.open if name.endswith(".gz") else open
    with opened(path, "wb") as file:
        file.write(text.encode())
    tables = read_terminology(path, [direction, EN_DE][: 1 + (not required)])
    assert Terms(tables[direction]).required(LINE) == required


@for_each(
    ("name", "text", "message"),
    [
        ("a.tsv", "a\tb\nc\td\te\n", ":2: expected a term, a tab and its translation, or a term "),
        ("a.tsv", "\tb\n", ":1: expected a term, a tab and its translation, or a term alone, not "),
        ("a.tsv", "a\tb\n\na \tc\n", ":3: 'a' already has the translation 'b'; remove one of"),
        ("a.tsv", "\n", ": has no terms; give one a line, with a tab before its translation"),
        ("a.tbx", "<martif>\n<b></martif>", ":2: not XML: mismatched tag; mend it, or export the"),
        ("a.tbx", "dog\tHund", ":1: not XML: syntax error; mend it, or export the glossary again"),
        ("a.tbx", "<html/>", ": no concept has terms of en-de; languages of its concepts: none; "),
        (
            "a.tbx",
            BASIC.replace('"de"', '"da"'),
            ": no concept has terms of en-de; languages of its concepts: en-US, da, fr, en; give ",
        ),
        (
            "a.tbx",
            '<!DOCTYPE martif [\n<!ENTITY a "aaaa">\n<!ENTITY b "&a;&a;">]><martif>&b;</martif>',
            ":2: declares or uses an entity; write its text instead",
        ),
        (
            "a.tbx",
            BASIC.replace("Haushund", "Hausk&ouml;ter"),
            ":10: declares or uses an entity; write its text instead",
        ),
    ],
)
def test_a_glossary_that_cannot_be_used_costs_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(NmtError) as error:
        read_terminology(path, [EN_DE])
    assert str(error.value).startswith(f"{path}{message}")
    assert "\n" not in str(error.value)


def test_tab_separated_lines_are_for_one_direction(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("dog\tHund\n")
    with pytest.raises(NmtError, match="do not say which of en-de, de-en they are for; choose"):
        read_terminology(tmp_path / "a.tsv", [EN_DE, ("de", "en")])


@pytest.fixture
def glossary(tmp_path: Path) -> Path:
    """Translations that the model of numbers does not choose by itself."""
    path = tmp_path / "terms.tsv"
    path.write_text("two\tvier\nthree\tsechs fünf\n")
    return path


def test_lines_with_terms_alone_leave_the_fast_engine(
    trained: Path, glossary: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    lines = ["one", "two six", "four", "Three. five", "twofour", ""]
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    flags = ("--model", trained, "--strategy", "beam")
    done = nmt("translate", *flags, tmp_path / "in")
    asked = nmt("translate", *flags, tmp_path / "in", "--terminology", glossary)
    assert (done.status, asked.status) == (0, 0), asked.err
    plain, translations = done.out.split("\n"), asked.out.split("\n")
    assert "engine ctranslate2" in asked.err
    assert [at for at in range(6) if plain[at] != translations[at]] == [1, 3]
    assert "vier" in translations[1]
    assert "sechs fünf" in translations[3]
    translator = package.Translator(trained, strategy="beam", terminology=glossary)
    searched = spied(translator.in_torch)
    assert list(translator.translate(lines)) == translations[:6]
    assert sorted(searched) == [1, 3]
    # A sentence of a line is searched by itself, and a request may bring its own terms.
    [text] = translator.translate([Request("two. one", split_sentences=True)])
    assert ("vier" in text, searched.pop()) == (True, 0)
    own = Request("two", terminology={"two": "drei"}, strategy=strategies["lexical_beam"])
    [text] = translator.translate([own])
    assert "drei" in text
    greedy = package.Translator(trained, strategy="greedy", terminology=glossary)
    assert "vier" in next(greedy.translate(["two"]))


def spied(translator: LineTranslator) -> list[int]:
    """The numbers of the lines that a translator searches, as it searches them."""
    searched: list[int] = []
    find = translator.find

    def noting(sentences: Any, count: int = 1) -> Any:
        searched.extend(sentences)
        return find(sentences, count)

    translator.find = noting  # type: ignore[method-assign]
    return searched


def test_what_cannot_place_phrases_is_refused_before_the_first_line(
    trained: Path, glossary: Path, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    export_run(trained, export_formats["ctranslate2"], "fp32", export)
    with pytest.raises(NmtError, match="an export cannot do this; give the run, or use"):
        package.Translator(export, strategy="beam", terminology=glossary)
    with pytest.raises(NmtError, match="sample cannot place phrases that must appear; use lexical"):
        package.Translator(trained, strategy="sample", terminology=glossary)


def test_terms_that_the_model_cannot_write_are_left_out(
    trained: Path, glossary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glossary.write_text("two\tvier\nfive\tQ\nABC\n")
    translator = package.Translator(trained, strategy="beam", terminology=glossary)
    message = f"{glossary}: the vocabulary lacks characters of 2 translations, such as 'Q'; their "
    assert message in capsys.readouterr().err
    [sentence] = translator.encode([Request("two five ABC")]).values()
    assert [[*phrase] for phrase in sentence.phrases] == translator.subwords.encode_phrases(
        ["vier"]
    )


@pytest.mark.full
def test_a_server_requires_the_terms_of_a_glossary(trained: Path, glossary: Path) -> None:
    with server(trained, "--terminology", glossary) as (address, _):
        for text, required in (("One two", "vier"), ("five. Three five", "sechs fünf")):
            wanted = {"q": text, "source": "en", "target": "de"}
            assert required in call(f"{address}/translate", wanted)[1]["translatedText"]
