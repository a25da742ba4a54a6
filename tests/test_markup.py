"""Markup: what a line of it holds, where its tags come to stand, and that none is lost."""

from __future__ import annotations

import html
import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from for_each import for_each

from nmt.errors import NmtError
from nmt.inference import Request, Translation
from nmt.inference.alignment import token_starts
from nmt.inference.markup import Dialect, Fragment, Segment, parse
from nmt.inference.markup.lines import translate_markup
from nmt.inference.markup.parsing import MAX_DEPTH, PLACEHOLDERS
from nmt.inference.markup.units import Element, Node, raw_of
from nmt.recipe.config import build
from nmt.search import Hypothesis
from nmt.search.config import SearchConfig

VOID = {"br", "hr", "img", "wbr", "x"}
BLOCKS = {"p", "li", "ul", "div", "br", "hr", "td", "tr", "table", "script"}


def translated(segment: Segment, reverse: bool) -> str:
    """The segment in capitals, in its order or in reverse, with exact alignments."""
    starts = token_starts(segment.text)
    ends = [*starts[1:], len(segment.text)]
    text, links = "", []
    for start, end in sorted(zip(starts, ends, strict=True), reverse=reverse):
        text += " " * bool(text)
        links.append((start, len(text)))
        text += segment.text[start:end].strip().upper()
    return segment.rendered(text, links, (starts, token_starts(text)))


def shown(line: str, reverse: bool = False, dialect: Dialect = "html") -> str:
    fragment = parse(line, dialect)
    return fragment.join(translated(segment, reverse) for segment in fragment.segments)


def unchanged(fragment: Fragment) -> str:
    """The line of a fragment, of which each word is its translation."""
    results = []
    for segment in fragment.segments:
        starts = token_starts(segment.text)
        links = [(start, start) for start in starts]
        results.append(segment.rendered(segment.text, links, (starts, starts)))
    return fragment.join(results)


def mended(line: str, dialect: Dialect) -> str:
    """The line as it is read, with its texts as they are."""
    return "".join(
        part if isinstance(part, str) else "".join(map(raw_of, part.nodes))
        for part in parse(line, dialect).parts
    )


EXAMPLES = {
    "no tags at all": "NO TAGS AT ALL",
    "big <b>wide <i>world</i></b> here": "BIG <b>WIDE <i>WORLD</i></b> HERE",
    "an <img src='x'> image": "AN <img src='x'> IMAGE",
    "at the end<!-- note -->": "AT THE END<!-- note -->",
    "<p>one &amp; two</p><p>three</p>": "<p>ONE &amp; TWO</p><p>THREE</p>",
    "one<br>two": "ONE<br>TWO",
    "<ul><li>one<li>two</ul>": "<ul><li>ONE</li><li>TWO</li></ul>",
    "<a href='a?b=1&amp;c'>go</a> on": "<a href='a?b=1&amp;c'>GO</a> ON",
    "press <code>Ctrl+C</code> now": "PRESS <code>Ctrl+C</code> NOW",
    "hello {name}, <span translate='no'>New <b>York</b></span>": (
        "HELLO {name} , <span translate='no'>New <b>York</b></span>"
    ),
    "<script>if (a<b) f()</script>text": "<script>if (a<b) f()</script>TEXT",
    "<b> </b>": "<b> </b>",
    "": "",
    "  spaces  stay ": "  SPACES STAY ",
    "a < b &lt; c & d": "A &lt; B &lt; C &amp; D",
    "<b>open": "<b>OPEN</b>",
    "closed</b> twice</i>": "CLOSED TWICE",
    "<b>one <i>two</b> three</i>": "<b>ONE <i>TWO</i></b> THREE",
    "a <b": "A &lt; B",
    "👍🏽 <em>👩‍💻</em> हिन्दी <b>भाषा</b>": "👍🏽 <em>👩‍💻</em> हिन्दी <b>भाषा</b>",
    "part<b>ial</b> word": "<b>PARTIAL</b> WORD",
    "<b></b>none": "<b></b>NONE",
    "line&#10;feed <b>x</b>": "LINE FEED <b>X</b>",
    "&#10;one&NewLine;<b>two&#13;</b>": " ONE <b>TWO</b> ",
    "one\ntwo <b title='a\r\nb'>three</b>": "ONE TWO <b title='a\r\nb'>THREE</b>",
    "\n<p>\n one\n</p>\n\n<p>two</p>\n": "\n<p>\n ONE\n</p>\n\n<p>TWO</p>\n",
    "one <code>a\n  b</code> two": "ONE <code>a\n  b</code> TWO",
    "<script>\n// a\nb()</script>one": "<script>\n// a\nb()</script>ONE",
    "<style>a{\n}</style><!-- a\nb -->one": "<style>a{\n}</style><!-- a\nb -->ONE",
    "<pre>  one\n    <b>two\nthree</b></pre>": "<pre>  ONE\n    <b>TWO\nTHREE</b></pre>",
    "<pre><code>x = 1\n# y\r\n</code></pre>": "<pre><code>x = 1\n# y\r\n</code></pre>",
    "<textarea>one\r\ntwo</textarea>": "<textarea>ONE\r\nTWO</textarea>",
    "<svg>\n<text>a</text>\n</svg> one": "<svg>\n<text>a</text>\n</svg> ONE",
    "one <a href='<%= a > b %>'>two</a>": "ONE <a href='<%= a > b %>'>TWO</a>",
    "{% if a < b %}<b>one</b>{% endif %}": "{% if a < b %} <b>ONE</b> {% endif %}",
    "50% of 100%ige 3%p 5 %-Klausel": "50 % OF 100 % IGE 3 % P 5 % - KLAUSEL",
    "C&# <b>two</b> &#; three": "C &amp; # <b>TWO</b> &amp; # ; THREE",
    "one <![ two": "ONE &lt; ! [ TWO",
    "one <![0] two <b>three</b>": "ONE <![0] two <b>THREE",
    "one <![foo]> <b>two</b>": "ONE <![foo]> <b>TWO</b>",
    "one <![CDATA[a > b]]> <b>two</b>": "ONE <![CDATA[a > b]]> <b>TWO</b>",
    "A<B>c</B>": "A<B>C</B>".replace("A<B>C", "<B>AC"),
}


@for_each("line", EXAMPLES)
def test_tags_stand_around_the_words_of_their_own(line: str) -> None:
    assert shown(line) == EXAMPLES[line]


GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "markup.md"


def families() -> dict[str, list[str]]:
    """The examples of each family of placeholders in the guide."""
    _, _, section = GUIDE.read_text(encoding="utf-8").partition("## Placeholders\n")
    rows = [line.split(" | ", 1) for line in section.splitlines() if line.startswith("| ")]
    return {name.strip("| "): re.findall("`([^`]+)`", examples) for name, examples in rows[1:]}


def test_the_guide_shows_each_family_of_placeholders() -> None:
    shown = families()
    assert [*shown] == [*PLACEHOLDERS]
    for name, examples in shown.items():
        for example in examples:
            assert re.fullmatch(PLACEHOLDERS[name], example), example


@for_each("placeholder", [example for examples in families().values() for example in examples])
def test_a_placeholder_of_any_family_moves_whole_with_its_words(placeholder: str) -> None:
    for dialect in ("html", "xliff"):
        for line in (f"one {placeholder} two", f"<b>one</b> {placeholder}, {placeholder} two"):
            for reverse in (False, True):
                result = shown(line, reverse, dialect)
                assert result.count(placeholder) == line.count(placeholder), result
                assert sorted(re.findall("[A-Z]{3}", result.replace(placeholder, ""))) == [
                    "ONE",
                    "TWO",
                ]


def test_a_user_adds_placeholders() -> None:
    search = build(SearchConfig, {"placeholders": ["x?", r"__\w+__", "one|two"]}, "search")
    line = "<b>__name__ one</b> three"
    assert shown(line) == "<b>__NAME__ ONE</b> THREE"
    fragment = parse(line, "html", search.placeholders)
    joined = fragment.join(translated(segment, False) for segment in fragment.segments)
    assert joined == "<b>__name__ one</b> THREE"
    with pytest.raises(NmtError, match=r"placeholders: no regular expression: '\(a': miss"):
        build(SearchConfig, {"placeholders": ["(a"]}, "search")
    with pytest.raises(NmtError, match=r"use \(\?:...\) instead of \(...\) in '\(a\)\+'"):
        build(SearchConfig, {"placeholders": ["(a)+"]}, "search")


def test_placeholders_that_have_no_end_take_no_time() -> None:
    begins = ["{%", "<%", "{{", "{n, plural, ", "${", "%(", "{#", "[[", "%5", "{n,plural,{}"]
    texts = [begin * 50_000 for begin in begins] + ["%" + "0" * 50_000, "%(a)" + "0" * 50_000]
    for text in texts:
        start = time.monotonic()
        parse(text)
        assert time.monotonic() - start < 5, text[:9]


REVERSED = {
    "big <b>wide <i>world</i></b> here": "HERE <b><i>WORLD</i> WIDE</b> BIG",
    "<b>one</b> <i>two</i> three": "THREE <i>TWO</i> <b>ONE</b>",
    "<b>one two</b>": "<b>TWO ONE</b>",
    "hello {name}, dear": "DEAR , {name} HELLO",
    "<p>one two</p> three four": "<p>TWO ONE</p> FOUR THREE",
    "one <code>x y</code> two": "TWO <code>x y</code> ONE",
}


@for_each("line", REVERSED)
def test_tags_move_with_their_words(line: str) -> None:
    assert shown(line, reverse=True) == REVERSED[line]


XLIFF = {
    'one <g id="1">two <x id="2"/></g><bx id="3"/> three': (
        'ONE <g id="1">TWO <x id="2"/></g> <bx id="3"/> THREE'
    ),
    '<mrk mtype="protected">Ab</mrk> <ph id="1">{0}</ph> one': (
        '<mrk mtype="protected">Ab</mrk> <ph id="1">{0}</ph> ONE'
    ),
    'one <ph id="1">&lt;br/&gt;</ph> two': 'ONE <ph id="1">&lt;br/&gt;</ph> TWO',
    'see <bpt id="1">&lt;a href="x"&gt;</bpt>this page<ept id="1">&lt;/a&gt;</ept> now': (
        'SEE <bpt id="1">&lt;a href="x"&gt;</bpt>THIS PAGE<ept id="1">&lt;/a&gt;</ept> NOW'
    ),
    '<it id="1" pos="open">&lt;b&gt;</it>one': '<it id="1" pos="open">&lt;b&gt;</it>ONE',
    'a<ph id="1">%n<sub>no text</sub></ph>': 'A<ph id="1">%n<sub>no text</sub></ph>',
    "<p>one</p> <br>two</br>": "<p>ONE</p> <br>TWO</br>",
    "<g>one</G>": "<g>ONE</g>",
}


@for_each("line", XLIFF)
def test_all_elements_of_xliff_are_inline(line: str) -> None:
    assert shown(line, dialect="xliff") == XLIFF[line]


def test_deep_nesting_ends() -> None:
    line = shown("<i>one " * 3000 + "</i>" * 3000)
    assert_well_formed(line)
    assert (line.count("<i>"), line.count("</i>"), line.count("ONE")) == (3000, 3000, 3000)
    begin, end = "<i>" * MAX_DEPTH, "</i>" * MAX_DEPTH
    assert shown(f"{begin}<b>one</b>{end}") == f"{begin}<b></b>ONE{end}"


def test_a_line_of_broken_tags_takes_no_longer_than_one_of_tags() -> None:
    def seconds(line: str) -> float:
        begin = time.process_time()
        parse(line)
        return time.process_time() - begin

    tags = min(seconds("<a>" * 15000) for _ in range(3))
    for broken in ("<a ", "<a", '<a b="'):
        assert seconds(broken * 15000) < tags, broken


def test_any_line_gives_one_well_formed_line() -> None:
    draw = random.Random(1)
    for _ in range(3000):
        line = "".join(draw.choices(PIECES, k=draw.randint(1, 12)))
        dialect: Dialect = draw.choice(["html", "xliff"])
        found = shown(line, draw.random() < 0.5, dialect)
        for line_break in "\n\r":  # an entity makes none
            assert found.count(line_break) <= line.count(line_break), line
        assert mended(found, dialect) == found, line


def test_an_element_takes_the_words_that_are_mostly_its_own() -> None:
    segment = parse("a <b>b c</b> d").segments[0]
    text = "B X C A D C"  # C is there twice, and X comes from nothing
    links = [(2, 0), (4, 4), (0, 6), (6, 8), (4, 10)]
    starts = token_starts(segment.text), token_starts(text)
    assert segment.rendered(text, links, starts) == "<b>B X C</b> A D C"
    assert segment.rendered("", [], (starts[0], [])) == "<b></b>"
    assert segment.rendered("Y", [], (starts[0], [0])) in ("<b></b>Y", "Y<b></b>")


def test_a_punctuation_mark_weighs_less_than_a_word() -> None:
    segment = parse("a <b>b c</b> d").segments[0]
    starts, links = token_starts(segment.text), [(2, 0), (0, 2), (4, 4), (6, 6)]
    for text, expected in (("B , C D", "<b>B , C</b> D"), ("B A C D", "<b>B</b> A C D")):
        assert segment.rendered(text, links, (starts, token_starts(text))) == expected


def test_nodes_stand_with_spaces_among_words_that_are_not_theirs() -> None:
    for line, text, links, expected in (
        ("aa <b>{x} b</b>", "AA B", [(0, 0), (7, 3)], "AA <b>{x} B</b>"),
        ("see <b>{x}</b> now", "sieh nun", [(0, 0), (8, 5)], "sieh <b>{x}</b> nun"),
        (
            "<kbd>Esc key</kbd> and a",
            "X und Y a",
            [(0, 0), (8, 2), (4, 6), (12, 8)],
            "<kbd>Esc key</kbd> und Y a",
        ),
    ):
        [segment] = parse(line).segments
        starts = token_starts(segment.text), token_starts(text)
        assert segment.rendered(text, links, starts) == expected


def test_what_follows_a_placeholder_in_the_same_piece_stays() -> None:
    [segment] = parse("Open {name}").segments
    links, starts = [(5, 0), (6, 1), (10, 5), (0, 7)], ([0, 5, 6, 10], [0, 1, 5, 7])
    assert segment.rendered("{name}を開く", links, starts) == "{name}を開く"
    [segment] = parse("press <kbd>Esc</kbd>").segments
    links, starts = [(0, 0), (6, 7)], ([0, 6], [0, 7])
    assert segment.rendered("drücke Escape", links, starts) == "drücke <kbd>Esc</kbd>"


def test_what_is_kept_replaces_its_translation_or_itself() -> None:
    segment = parse("see {x} or <kbd>Esc</kbd>").segments[0]
    starts = token_starts(segment.text)
    for text, expected in {
        "siehe {x} oder Esc": "siehe {x} oder <kbd>Esc</kbd>",
        "Esc oder siehe {x}": "<kbd>Esc</kbd> oder siehe {x}",
        "siehe dort": "siehe {x} dort <kbd>Esc</kbd>",
    }.items():
        links = [(0, text.index("siehe"))]
        assert segment.rendered(text, links, (starts, token_starts(text))) == expected


@for_each(
    ("text", "expected"),
    [
        ("siehe {x}{x} dort {x}", "siehe {x} dort <kbd>Esc</kbd>"),
        ("Esc, siehe Escape {x}", "<kbd>Esc</kbd>, siehe Escape {x}"),
        ("{x}Esc と", "{x}<kbd>Esc</kbd> と"),
        ("{x}Escと", "{x}<kbd>Esc</kbd>と"),
    ],
)
def test_what_a_translation_repeats(text: str, expected: str) -> None:
    segment = parse("see {x} or <kbd>Esc</kbd>").segments[0]
    starts = token_starts(segment.text), token_starts(text)
    assert segment.rendered(text, [], starts) == expected


@for_each(
    "line",
    [
        "Use un<code>set</code> now",
        "Mac<span translate=no>OS</span> ok",
        "v<code>1.2</code>",
        "%d<sup>th</sup> of %d",
        "%(n)s<b>th</b> of %(n)s",
        "The road is %d<b>km</b> long.",
        "<b>%s</b>s and %s",
        "<code>x</code>y z",
        "x<code>2</code><b>y</b>",
        "A<code>A</code>A <code>B</code><code>BB</code>",
        "{{x}}<b>{x}</b>${x}",
        "在<code>main</code>中",
        "日本<span translate=no>Sony</span>の",
    ],
)
def test_words_that_touch_what_is_kept_stay(line: str) -> None:
    assert unchanged(parse(line)) == line


KEPT = {
    "%d": "%d",
    "{x}": "{x}",
    "{{x}}": "{{x}}",
    "<code>f(x)</code>": "f(x)",
    "<kbd>set</kbd>": "set",
    "<span translate=no>New York</span>": "New York",
}
"""Stretches that are kept, and their texts."""

TEXTS = ["ONE", "Two", "É", "中", "件", ",", "-", "'", " ", " ", " "]
"""Texts in which no kept stretch is spelt."""


class GluedLines:
    """A generator of lines with words that touch tags and kept stretches."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def line(self) -> str:
        pieces = ["ONE"]
        for number in range(self.draw.randint(1, 12)):
            tags = [f'<b id="{number}">', f'<i id="{number}">', f'<img id="{number}">']
            kinds = [TEXTS, TEXTS, list(KEPT), list(KEPT), [*tags, "</b>", "</i>"]]
            pieces.append(self.draw.choice(self.draw.choice(kinds)))
        line = "".join(pieces)
        return re.sub(r"%d(?=\w)", "%d ", line)  # "%dx" is no placeholder

    def translation(self, kept: Counter[str]) -> list[str]:
        """Pieces of a translation that may lack and repeat texts that are kept."""
        texts = [KEPT[raw] for raw in kept.elements()]
        if self.draw.random() < 0.5:
            texts = self.draw.choices(texts, k=len(texts)) if texts else []
        pieces = self.draw.choices(TEXTS, k=self.draw.randint(1, 8)) + texts
        self.draw.shuffle(pieces)
        for at in range(len(pieces) - 1, 0, -1):
            if any(piece in ("f(x)", "set", "New York") for piece in pieces[at - 1 : at + 1]):
                pieces.insert(at, " ")  # or they would be parts of words
        return pieces

    def links(self, source: list[int], target: list[int]) -> list[tuple[int, int]]:
        chosen = [at for at in target if self.draw.random() < 0.7]
        return [(self.draw.choice(source), at) for at in self.draw.choice([target, chosen, []])]


def inside(nodes: list[Node], outer: str = "") -> Counter[tuple[str, str]]:
    """All tags and kept elements, each with the tag of the element around it."""
    pairs = Counter[tuple[str, str]]()
    for node in nodes:
        if isinstance(node, Element):
            pairs[node.opening, outer] += 1
            pairs += inside(node.children, node.opening)
        elif raw_of(node).startswith("<"):
            pairs[raw_of(node), outer] += 1
    return pairs


def without_markup(line: str, texts: Iterable[str]) -> str:
    """The characters of a line besides tags, kept stretches, texts that are kept, and spaces."""
    stretches = sorted([*KEPT, *texts], key=len, reverse=True)
    line = re.sub("|".join(map(re.escape, stretches)), "", line)
    return "".join(html.unescape(re.sub("<[^>]*>", "", line)).split())


def test_lines_come_back_as_they_are_if_no_word_changes() -> None:
    lines = GluedLines(seed=2)
    count = 0
    for _ in range(5000):
        fragment = parse(lines.line())
        whole = fragment.join("".join(map(raw_of, segment.nodes)) for segment in fragment.segments)
        if re.search(r"\w(<[^>]*>)+\w", re.sub("|".join(map(re.escape, KEPT)), "/", whole)):
            continue  # a tag in a word
        count += 1
        result = unchanged(fragment)
        assert "".join(result.split()) == "".join(whole.split()), (whole, result)
    assert count > 2500


@pytest.mark.full
def test_any_links_lose_no_text_and_nothing_that_is_kept() -> None:
    lines = GluedLines(seed=1)
    for _ in range(5000):
        line = lines.line()
        [segment] = parse(line, "html").segments
        kept = Counter({raw: mended(line, "html").count(raw) for raw in KEPT})
        kept["{x}"] -= kept["{{x}}"]
        pieces = lines.translation(kept)
        text = "".join(pieces).strip()
        starts = token_starts(segment.text), token_starts(text)
        links = lines.links(*starts)
        result = segment.rendered(text, links, starts)
        case = (line, text, links, result)
        for raw, count in kept.items():
            assert result.replace("{{x}}" * (raw == "{x}"), "").count(raw) == count, case
        rest, whole = (without_markup(part, KEPT.values()) for part in (result, "".join(pieces)))
        lacks = any(pieces.count(KEPT[raw]) < count for raw, count in kept.items())
        if links and lacks:  # what is aligned with it is its translation
            remaining = iter(text)
            assert all(character in remaining for character in rest), case
        else:
            assert rest == whole, case
        assert inside(parse(f"- {result} -").segments[0].nodes) == inside(segment.nodes), case


PIECES = [
    *("one", " ", "&#10;", "&NewLine;", "&#13;", "&#", "&", "&amp", "\n", "\r", "{x}", "%s", ";"),
    *("<", ">", "/", "'", '"', "=", "<b>", "</b>", "<i ", "</i", "<p>", "</p>", "<br/>", "</>"),
    *("<!", "<![", "]", "<![CDATA[", "]]>", "<!--", "--", "-->", "<?", "<!doctype", "<kbd>"),
]

WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "café",
    "naïve",
    "👍🏽",
    "👩‍💻",
    "R&D",
    "x<y",
    "42.",
]
PROTECTED = ["{name}", "%s", "<code>f(x)</code>", "<b translate=no>New York</b>"]


class Fragments:
    """A generator of fragments: nested, broken, with entities and emoji."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.number = 0

    def fragment(self) -> tuple[str, list[str] | None, list[str]]:
        """A line, the texts of its blocks, and its tags and stretches to be kept.

        There are no texts if something is translated otherwise: a stretch that is kept, or a block
        in an inline element, which then divides the text, too.
        """
        self.texts, self.kept, self.line = [""], list[str](), ""
        self.inline, self.is_plain = 0, True
        self._content(depth=0)
        texts = [text for text in self.texts if text.strip()]
        return self.line, texts if self.is_plain else None, self.kept

    def _content(self, depth: int) -> None:
        for _ in range(self.draw.randint(1, 4)):
            kind = self.draw.random()
            if kind < 0.45 or depth > 3:
                self._words()
            elif kind < 0.6:
                self.inline += 1
                self._element(self.draw.choice(["b", "i", "a", "span"]), depth)
                self.inline -= 1
            elif kind < 0.68:
                self._break()
                self._element(self.draw.choice(["p", "div"]), depth)
                self._break()
            elif kind < 0.8:
                tag = self._tag(self.draw.choice(["img", "wbr", "hr"]))
                self.line += tag
                if "<hr" in tag:
                    self._break()
            elif kind < 0.84:
                self.line += f"<!-- {self.number} -->"
            elif kind < 0.9:
                self.line += self.draw.choice(["</b>", "</table>", "</nothing >"])
            elif kind < 0.94:
                kept = self.draw.choice(PROTECTED)
                self.is_plain = False
                self.kept.append(kept)
                self.line += f" {kept} "
            else:
                self._tag_left_open()
                self._words()

    def _words(self) -> None:
        words = " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, 5)))
        self.texts[-1] += f" {words} "
        written = html.escape(words) if self.draw.random() < 0.7 else words.replace("<", "&lt;")
        self.line += f" {written} "

    def _element(self, name: str, depth: int) -> None:
        self.line += self._tag(name)
        self._content(depth + 1)
        self.line += f"</{name}>"

    def _tag_left_open(self) -> None:
        self.line += self._tag("u")
        self.inline += 1  # until the end, at most

    def _tag(self, name: str) -> str:
        self.number += 1
        tag = f'<{name} id="{self.number}">'
        self.kept.append(tag)
        return tag

    def _break(self) -> None:
        self.texts.append("")
        self.is_plain &= not self.inline


def assert_well_formed(line: str) -> None:
    """Every tag closes what was opened last; what is no tag has no "<" and whole entities."""
    inside: list[str] = []
    rest = re.sub(r"<!--.*?-->", "", line)
    for end, name in re.findall(r"<(/?)([a-z]+)(?: [^<>]*)?>", rest):
        if end:
            assert inside, line
            assert inside.pop() == name, line
        elif name not in VOID:
            inside.append(name)
    assert not inside, line
    text = re.sub(r"</?[a-z]+(?: [^<>]*)?>", "", rest)
    assert not re.search(r"[<>]|&(?!\w+;|#\d+;)", text), line


def text_in(line: str) -> str:
    """The text of a line: blocks are apart."""
    line = re.sub(r"<!--.*?-->", "", line)
    line = re.sub(r"</?(\w+)[^<>]*>", lambda tag: " " if tag[1] in BLOCKS else "", line)
    return " ".join(html.unescape(line).split())


def test_markup_alone_is_aligned_in_pieces_without_spaces_between_words() -> None:
    class Echo:
        config = SearchConfig(window=9)

        def __init__(self, unit: str) -> None:
            self.usual_unit = unit
            self.calls: list[tuple[list[str], str | None]] = []

        def translations(
            self, requests: list[Request], aligned: str | None
        ) -> list[list[Translation]]:
            texts = [request.text for request in requests]
            self.calls.append((texts, aligned))
            nothing = Hypothesis([], 0.0, 0.0, finished=True)
            return [[Translation(text, text, nothing)] for text in texts]

    for usual, unit in (("words", "tokens"), ("pieces", "pieces")):
        echo: Any = Echo(usual)
        assert list(translate_markup(echo, ["c", "<b>b</b>"])) == ["c", "<b>b</b>"]
        assert echo.calls == [(["c"], None), (["b"], unit)]


def test_of_2000_fragments_all_are_well_formed_and_keep_their_tags_and_their_text(
    trained: Path, tmp_path: Path, nmt: Command
) -> None:
    fragments = Fragments(seed=1)
    made = [fragments.fragment() for _ in range(2000)]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line, _, _ in made))
    texts = [" ".join(text.split()) for _, texts, _ in made for text in texts or ()]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    flags = ("--model", trained, "--workers", 1, "--max-length-offset", 3)
    found = nmt("translate", tmp_path / "lines", *flags, "--markup", "html")
    assert found.status == 0, found.err
    plain = iter(nmt("translate", tmp_path / "texts", *flags).out.splitlines())
    lines = found.out.splitlines()
    assert len(lines) == len(made)
    same = compared = 0
    for line, (_, texts, kept) in zip(lines, made, strict=True):
        assert_well_formed(line)
        for stretch, count in Counter(kept).items():
            assert line.count(stretch) == count, (line, stretch)
        if texts is not None:
            compared += 1
            same += text_in(line) == " ".join(" ".join(next(plain) for _ in texts).split())
    assert compared > 1000
    assert same >= 0.99 * compared


def test_markup_goes_without_other_forms(trained: Path, nmt: Command) -> None:
    done = nmt("translate", "--model", trained, "--markup", "html", "--json")
    assert done.status == 2
    refused = (
        "--markup goes without --prefix, --require, --avoid, --json-input, --n-best, --json and "
        "--retry"
    )
    assert refused in done.err
