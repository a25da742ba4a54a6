"""Requests: what is wanted of the translation of a single line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each

from nmt.cli.translate.io import Requests
from nmt.data.vocabulary import BOS, PAD
from nmt.errors import NmtError
from nmt.inference import Request, SearchConfig
from nmt.inference.request import naming_line
from nmt.search import Avoided, Greedy, strategies

CONFIG = SearchConfig()


def masked(avoided: Avoided, *rows: list[int]) -> list[set[int]]:
    """What may not follow each row of tokens, of the ids below 10."""
    logits = torch.zeros(len(rows), 1, 10)
    avoided.mask_continuations(logits, torch.tensor([[[BOS, *tokens]] for tokens in rows]))
    return [{*row[0].isneginf().nonzero()[:, 0].tolist()} - {PAD} for row in logits]


def test_the_last_token_of_a_phrase_to_avoid_may_not_follow_the_others() -> None:
    phrases = torch.tensor([[[4, 5, 6], [7, 0, 0]], [[4, 5, 0], [0, 0, 0]]])
    avoided = Avoided(phrases=phrases)
    assert masked(avoided, [4, 5], [4, 5]) == [{6, 7}, set()]
    assert masked(avoided, [8, 4], [8, 4]) == [{7}, {5}]
    assert masked(avoided, [], []) == [{7}, set()]
    assert masked(avoided.select_sentences(torch.tensor([1])), [4]) == [{5}]


def test_a_phrase_to_avoid_that_a_shortlist_lacks_masks_nothing() -> None:
    tokens = torch.tensor([0, 1, 2, 3, 5, 6, 8])
    reduced = Avoided(phrases=torch.tensor([[[5, 8, 0], [5, 7, 6]]])).to_reduced_ids(tokens)
    assert reduced.phrases.tolist() == [[[4, 6, 0], [0, 0, 0]]]


@for_each(
    ("fields", "message"),
    [
        ({"txt": "a"}, 'line 1: expected an object with the field "text"'),
        (["a"], 'line 1: expected an object with the field "text"'),
        ({"text": "a", "avoids": []}, "line 1: unknown key 'avoids'; did you mean 'avoid'?"),
        ({"text": "a", "avoid": [["b"]]}, "line 1.avoid: expected text, not ['b']"),
        ({"text": "a\nb"}, "line 1: text is several lines; make a request of each"),
        ({"text": "a", "n_best": 0}, "line 1: n_best must be at least 1, not 0"),
        (
            {"text": "a", "strategy": "greedy", "n_best": 2},
            "line 1: 2 translations of a line: greedy finds at most 1; ",
        ),
        (
            {"text": "a", "terminology": {"a": "b"}},
            "line 1: search.strategy: beam cannot place phrases that must appear; use lexical_beam",
        ),
        ({"text": 3}, "line 1.text: expected text, not 3; put it in quotes"),
        ({"text": "a", "phrases": [5]}, "line 1.phrases: expected text, not 5; put it in quotes"),
        ({"text": "a", "avoid": 0.5}, "line 1.avoid: expected text, not 0.5; put it in quotes"),
        (
            {"text": "a", "terminology": {"a": 5}},
            "line 1.terminology: expected text, not 5; put it in quotes",
        ),
        ({"text": "a", "terminology": {" ": "b"}}, "line 1: terminology has an empty term"),
        ({"text": "a", "terminology": {"\u200b": "b"}}, "line 1: terminology has an empty term"),
        ({"text": "a", "strategy": {"bean": 2}}, "line 1.strategy: unknown key 'bean'; did you"),
    ],
)
def test_a_mistaken_request_is_one_line(fields: object, message: str) -> None:
    with pytest.raises(NmtError) as error:
        Request.read(fields, "line 1", CONFIG)
    assert str(error.value).startswith(message)


def test_settings_of_a_strategy_override_those_of_the_command() -> None:
    request = Request.read({"text": "a", "strategy": {"beam": 7}}, "line 1", CONFIG)
    assert request == Request("a", strategy=strategies["beam"].__class__(name="beam", beam=7))
    assert Request.read({"text": "a", "strategy": "greedy"}, "", CONFIG).strategy == Greedy(
        name="greedy"
    )


def test_of_overlapping_terms_the_first_and_longest_counts() -> None:
    terms = {
        "New": "neu",
        "York": "Jork",
        "New York": "Neu-York",
        "York Times": "Jorker Zeit",
        "c++": "C",
    }
    for text, required in (
        ("in New York Times", ["Neu-York"]),
        ("York and New York", ["Jork", "Neu-York"]),
        ("New York", ["Neu-York"]),
        ("New Yorkers of York", ["neu", "Jork"]),
        ("c++ is new", ["C"]),
        ("nothing", []),
    ):
        request = Request(text, phrases=("x",), terminology=terms)
        assert request.required() == ["x", *required]
    assert Request("紐約時報", terminology={"約": "1", "紐約": "2"}).required() == ["2"]
    assert Request("one").required() == []


@for_each(
    ("request_", "message"),
    [
        (Request("one", avoid="eins"), "avoid: expected a list of lines, not one string"),
        (Request("one", phrases="eins"), "phrases: expected a list"),
        (Request("one", strategy="beam"), r"nmt.search.Beam\(beam=8\), not 'beam'"),
    ],
)
def test_other_types_are_refused_in_python(request_: Request, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        request_.check(SearchConfig())


def test_a_combining_mark_is_a_part_of_its_word() -> None:
    for text, term, is_in in (
        ("रामी घर गया", "राम", False),
        ("राम घर गया", "राम", True),
        ("the cafe\u0301s", "cafe", False),
        ("the café", "cafe\u0301", True),
        ("the cafe\u0301", "café", True),
    ):
        assert Request(text, terminology={term: "X"}).required() == ["X"] * is_in


def test_terms_are_found_where_the_model_reads_their_words() -> None:
    terms = {"red dog": "1", "caf\u00e9 red": "2", "dog  dog": "3", "\ufb01sh": "4"}
    spaces = [" ", "  ", "\u00a0", "\u200b", "\u3000", " \x1c", "\x1d\x1e \x1f", "\t"]
    spelled = {"caf\u00e9": ["caf\u00e9", "cafe\u0301"], "red": ["red", "r\x1ced"]}
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(2000):
        words = draw.choices(["red", "dog", "caf\u00e9", "fish", "a\x85"], k=draw.randint(1, 4))
        text = "".join(
            draw.choice(spelled.get(word, [word])) + draw.choice(spaces) for word in words
        )
        expected, place = set(), 0
        while place < len(words):
            pair = " ".join(words[place : place + 2])
            found = {"red dog": "1", "caf\u00e9 red": "2", "dog dog": "3"}.get(pair)
            expected |= {found or {"fish": "4"}.get(words[place])} - {None}
            place += 2 if found else 1
        request = Request(text, terminology=terms)
        assert sorted(request.required()) == sorted(expected), text


def requests(count: int) -> list[dict[str, Any]]:
    """Requests with any mix of fields, in the words of the numbers."""
    english, german = ("one", "two", "three", "four"), ("eins", "zwei", "drei", "vier")
    draw = random.Random(1)
    made = []
    for _ in range(count):
        request: dict[str, Any] = {"text": " ".join(draw.choices(english, k=draw.randint(1, 6)))}
        if draw.random() < 0.4:
            request["prefix"] = draw.choice(german)
        wants_phrases = draw.random() < 0.4
        if wants_phrases:
            request["phrases"] = [draw.choice(german[:2])]
            request["terminology"] = {"one": "eins", "two": "zwei"}
        if draw.random() < 0.4:
            request["avoid"] = [draw.choice(["drei", "vier", "fünf drei"])]
            if request.get("prefix") in ("drei", "vier"):
                del request["prefix"]
        if wants_phrases:
            request["strategy"] = {"name": "lexical_beam", "beam": draw.choice([8, 10])}
        elif draw.random() < 0.6:
            request["strategy"] = draw.choice(["beam", {"name": "beam", "beam": 3}, "greedy"])
        if request.get("strategy", "greedy") != "greedy":
            request["n_best"] = draw.randint(1, 3)
        made.append(request)
    return made


def test_a_request_among_others_is_translated_as_alone(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    wanted = requests(40)
    one_by_one = with_near_scores(translate(trained, tmp_path, nmt, wanted, "--window", "1"))
    assert translate(trained, tmp_path, nmt, wanted) == one_by_one
    order = random.Random(2).sample(range(40), 40)
    wanted = [wanted[index] for index in order]
    shuffled = translate(trained, tmp_path, nmt, wanted, "--workers", "1")
    assert shuffled == [one_by_one[index] for index in order]
    for request, line in zip(wanted, shuffled, strict=True):
        texts = [line["text"], *(other["text"] for other in line.get("others", []))]
        assert 1 <= len(texts) <= request.get("n_best", 1)
        for text in texts:
            assert text.startswith(request.get("prefix", ""))
            assert all(phrase in text for phrase in request.get("phrases", []))
            assert all(phrase not in text for phrase in request.get("avoid", []))
            for term, translation in request.get("terminology", {}).items():
                assert term not in request["text"].split() or translation in text


def translate(
    run: Path, directory: Path, nmt: Callable[..., Any], wanted: list[dict[str, Any]], *flags: str
) -> list[dict[str, Any]]:
    """The JSON objects of the translations, without their numbers."""
    path = directory / "requests.jsonl"
    path.write_text("".join(f"{json.dumps(request)}\n" for request in wanted))
    done = nmt("translate", path, "--model", run, "--json-input", "--json", *flags)
    assert done.status == 0, done.err
    objects = [json.loads(line) for line in done.out.splitlines()]
    for line in objects:
        del line["id"]
    return objects


def with_near_scores(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same objects, equal to those whose numbers another batch has rounded differently."""
    for line in lines:
        for fields in (line, *line.get("others", [])):
            for name in ("score", "log_probability", "token_log_probabilities"):
                fields[name] = pytest.approx(fields[name], rel=1e-5, abs=1e-5)
    return lines


def test_a_blank_line_of_json_is_a_line_and_a_mistake_names_its_line(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"text": "one"}\n\n')
    done = nmt("translate", path, "--model", trained, "--json-input")
    assert len(done.out.splitlines()) == 2
    assert not done.out.splitlines()[1]
    path.write_text('{"text": "one"}\n{"text": \n')
    done = nmt("translate", path, "--model", trained, "--json-input")
    assert done.status == 1
    assert done.err.startswith(f"nmt: error: {path}, line 2: not JSON: ")
    assert done.err.endswith('; a line is an object such as {"text": "..."}\n')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "one", "avoid": ["\\ud800"]}', "has half a character, which is not text"),
        ("[" * 100_000, "expected an object, not brackets within brackets"),
    ],
)
def test_a_line_of_json_that_is_no_request_is_told_in_one_line(
    line: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(f"{line}\n")
    requests = Requests.open(path, is_json=True)
    requests.configure(CONFIG)
    with pytest.raises(NmtError, match=rf"line 1: {message}$"):
        list(requests.arriving(10))


def test_phrases_to_avoid_come_from_a_file_line_by_line(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    text, avoid = tmp_path / "in.txt", tmp_path / "avoid.txt"
    text.write_text("one two\nthree\n")
    (first, second) = nmt("translate", text, "--model", trained).out.splitlines()
    avoid.write_text(f"{first.split()[0]}\t{first.split()[-1]}\n\n")
    done = nmt("translate", text, "--model", trained, "--avoid", avoid)
    changed, same = done.out.splitlines()
    assert not {first.split()[0], first.split()[-1]} & set(changed.split())
    assert same == second
    required = tmp_path / "required.txt"
    required.write_text(f"{first.split()[0]}\n\n")
    files = ("--avoid", avoid, "--require", required, "--strategy", "lexical_beam")
    done = nmt("translate", text, "--model", trained, *files)
    assert done.status == 1
    expected = "must appear, but contains a phrase to avoid (line 'one two')\n"
    assert done.err.endswith(expected)


def test_a_line_that_no_search_can_serve_is_shown(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two", "strategy": "greedy"}\n')
    flags = ("--json-input", "--strategy", "beam", "--beam", 2, "--n-best", 2)
    done = nmt("translate", path, "--model", trained, *flags)
    assert done.status == 1
    assert "greedy finds at most 1" in done.err
    assert done.err.endswith("(line 'two')\n")


def test_a_line_that_the_constraints_leave_no_translation_is_shown(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two six", "phrases": ["ein, ein, ein"]}\n')
    limits = "search.constraints=[{name: no_repeat_ngram, size: 1}, {name: max_length, length: 9}]"
    flags = ("--json-input", "--strategy", "lexical_beam", "--set", limits)
    done = nmt("translate", path, "--model", trained, *flags)
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("leave no translation at all; loosen one of them (line 'two six')\n")


@for_each("line", ["one", "x" * 80, "这" * 81, "one two " * 20])
def test_a_message_shows_the_beginning_of_its_line(line: str) -> None:
    with pytest.raises(NmtError) as error, naming_line(line):
        raise NmtError("bad")
    shown = line if len(line) <= 80 else f"{line[:77]}..."
    assert str(error.value) == f"bad (line {shown!r})"


def test_a_blank_line_has_as_many_log_probabilities_as_tokens(
    trained: Path, tmp_path: Path, nmt: Callable[..., Any]
) -> None:
    (done,) = translate(trained, tmp_path, nmt, [{"text": " "}])
    assert (done["text"], done["tokens"]) == ("", ["</s>"])
    assert done["token_log_probabilities"] == [0.0]
