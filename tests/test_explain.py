"""What ``nmt explain`` says of a model: equal to what the model computes, and a whole page."""

from __future__ import annotations

import base64
import copy
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from html_checker import Checker
from matplotlib import image
from tiny_models import tiny

from nmt.data.vocabulary import BOS
from nmt.errors import NmtError
from nmt.explain import explain
from nmt.explain.document import document, listed, packed, page
from nmt.explain.explanation import Candidate
from nmt.explain.summaries import Traced, rollout, summarise, tree
from nmt.inference import SearchConfig, Translator
from nmt.inference.engines import load_translator
from nmt.models.base import AttentionMap, Model
from nmt.models.ensemble import Ensemble
from nmt.recipe.config import build
from nmt.runs import load_model
from nmt.search import Hypothesis, strategies

Command = Callable[..., Any]

LINES = ["one two three", " ", "six five four one"]
FACTS = [{"model": "x", "architecture": "y", "languages": ["en", "de"], "update": 6}]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory, train: Command) -> Translator:
    """A model that has learned a little, with a beam."""
    directory = tmp_path_factory.mktemp("learned") / "checkpoints"
    often = [f"train.{key}_every=100" for key in ("valid", "save")]
    sets = [f"--set={value}" for value in ("train.max_updates=100", *often)]
    assert train(directory, *sets).status == 0
    loaded = load_model(directory)
    return Translator(loaded.model, loaded.subwords, SearchConfig(max_length_offset=5))


def test_an_explanation_says_what_the_model_computes(translator: Translator) -> None:
    [explanations] = explain([translator], LINES)
    assert [each.source.text for each in explanations] == [LINES[0], LINES[2]]
    texts = list(translator.translate(LINES))
    assert [each.target.text for each in explanations] == [texts[0], texts[2]]
    assert all(each.target.text for each in explanations)
    for each in explanations:
        source = torch.tensor([each.source.ids])
        inputs = torch.tensor([[BOS, *each.target.ids[:-1]]])
        with torch.no_grad():
            maps = translator.model.attention_maps(source, inputs)
            logits = translator.model(source, inputs)[0]
        assert len(maps) == 3
        for one, other in zip(maps, each.attention, strict=True):
            torch.testing.assert_close(one.weights, other.weights)
        probabilities = logits.softmax(-1)
        for at, step in enumerate(each.steps):
            chosen = probabilities[at, each.target.ids[at]]
            assert math.exp(step.log_probability) == pytest.approx(chosen.item(), rel=1e-4)
            best = probabilities[at].clone()
            best[[0, BOS]] = 0.0
            ids = best.topk(10).indices.tolist()
            assert {token.id for token in step.likeliest} == {*ids}
        total = sum(step.log_probability for step in each.steps)
        assert total == pytest.approx(each.hypotheses[0].log_probability, rel=1e-4)


def test_a_given_translation_is_explained_without_a_search(translator: Translator) -> None:
    [both] = explain([translator], LINES)
    texts = [both[0].target.text, "", both[1].target.text]
    [again] = explain([translator], LINES, texts)
    # The search may spell a text by other pieces.
    equal = [pair for pair in zip(both, again, strict=True) if pair[0].target == pair[1].target]
    assert equal
    for found, given in equal:
        torch.testing.assert_close(given.attention[0].weights, found.attention[0].weights)
    [[other]] = explain([translator], LINES[:1], ["sechs"])
    assert other.target.pieces[-1] == "</s>"
    assert other.hypotheses == other.beam == []
    assert [step.log_probability for step in other.steps] == pytest.approx(
        translator.score(LINES[:1], ["sechs"])[0], rel=1e-4
    )


def test_the_end_of_a_cut_source_is_a_word_of_its_own(translator: Translator) -> None:
    [[whole]] = explain([translator], ["seven four five"])
    for most in range(2, len(whole.source.ids)):
        config = SearchConfig(max_source_length=most, max_length_offset=5)
        cut = Translator(translator.model, translator.subwords, config)
        [[explained]] = explain([cut], ["seven four five"])
        *words, end = explained.source.words
        assert words == whole.source.words[: most - 1]
        assert end == max(words) + 1


def test_members_of_an_ensemble_read_its_translation(translator: Translator) -> None:
    torch.manual_seed(1)
    size = translator.subwords.target_size
    other = tiny("rnnsearch").build(size, size, True).eval()
    model = Ensemble([translator.model, other], [3.0, 1.0]).eval()
    both = Translator(model, translator.subwords, SearchConfig(max_length_offset=5))
    whole, first, second = explain([both], LINES)
    assert [each.target.text for each in whole] == list(both.translate([LINES[0], LINES[2]]))
    for parts in zip(whole, first, second, strict=True):
        assert parts[0].source == parts[1].source == parts[2].source
        assert parts[0].target == parts[1].target == parts[2].target
        assert [bool(part.beam) for part in parts] == [True, False, False]
        assert [len(part.attention) for part in parts] == [0, 3, 1]
        assert [{*part.embeddings} for part in parts] == [
            set(),
            {"source", "target", "positions"},
            {"source", "target"},
        ]
        for mean, one, two in zip(*(part.steps for part in parts), strict=True):
            log_probs = [step.log_probability for step in (one, two)]
            expected = math.log(0.75 * math.exp(log_probs[0]) + 0.25 * math.exp(log_probs[1]))
            assert mean.log_probability == pytest.approx(expected, rel=1e-4)


def test_a_model_that_was_converted_for_speed_is_refused(trained: Path) -> None:
    with pytest.raises(NmtError, match="is converted for speed and records no attention; load it"):
        explain([load_translator(trained)], LINES)  # type: ignore[list-item]


def test_models_beside_each_other_explain_their_own_translations(translator: Translator) -> None:
    one = Translator(
        translator.model,
        translator.subwords,
        SearchConfig(max_length_ratio=0.0, max_length_offset=1),
    )
    found = explain([translator, one], LINES)
    assert found[0][0].target != found[1][0].target
    assert found[1][0].target == explain([one], LINES)[0][0].target
    given = explain([translator, one], LINES, ["eins", "", "zwei"])
    assert [[each.target.text for each in model] for model in given] == [["eins", "zwei"]] * 2


def test_tags_before_a_translation_are_on_the_device_of_the_model(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged = copy.copy(translator)
    tagged.subwords = copy.copy(translator.subwords)
    tagged.subwords.tags = ([], [7])
    [[explained]] = explain([tagged], LINES[:1])
    assert explained.target.ids[0] == 7
    devices = set()

    def search(_: Traced, __: Model, *tensors: Any) -> None:
        source, max_lengths, [prefixes] = tensors
        devices.update(part.device.type for part in (source, max_lengths, prefixes.tokens))
        raise NotImplementedError

    monkeypatch.setattr(Traced, "search", search)
    tagged.device = torch.device("meta")
    with pytest.raises(NotImplementedError):
        explain([tagged], LINES[:1])
    assert devices == {"meta"}


def test_a_translation_by_minimum_bayes_risk_is_explained(translator: Translator) -> None:
    keys = {"strategy": {"name": "sample", "samples": 8}, "max_length_offset": 5}
    plain, by_risk = (
        Translator(translator.model, translator.subwords, build(SearchConfig, values, "search"))
        for values in (keys, {**keys, "mbr": "chrf"})
    )
    [explanations] = explain([by_risk], LINES)
    texts = [each.target.text for each in explanations]
    translations = [best for [best] in by_risk.translations([LINES[0], LINES[2]])]
    assert texts == [translation.text for translation in translations]
    assert texts != list(plain.translate([LINES[0], LINES[2]]))
    for explained, translation in zip(explanations, translations, strict=True):
        assert explained.hypotheses[0].score == translation.hypothesis.score
        assert [node.piece for node in explained.beam if node.is_best] == explained.target.pieces


def test_the_length_penalty_is_told_where_the_score_is_a_quotient(translator: Translator) -> None:
    def hypotheses(**keys: object) -> list[Candidate]:
        config = build(SearchConfig, {"max_length_offset": 5, **keys}, "search")
        searching = Translator(translator.model, translator.subwords, config)
        [[explained, _]] = explain([searching], LINES)
        return explained.hypotheses

    for each in hypotheses():
        assert each.length_penalty == pytest.approx(((5 + each.length) / 6) ** 0.6, rel=1e-5)
    assert all(each.length_penalty == 1.0 for each in hypotheses(strategy="greedy"))
    for keys in ({"coverage_penalty": 0.2}, {"mbr": "chrf"}):
        assert {each.length_penalty for each in hypotheses(**keys)} == {None}


@pytest.mark.parametrize("name", strategies)
def test_the_search_is_a_tree_that_leads_to_the_translation(
    name: str, translator: Translator
) -> None:
    config = SearchConfig(strategy=strategies[name], max_length_offset=5)
    [explained] = explain([Translator(translator.model, translator.subwords, config)], LINES)
    for found in explained:
        for node in found.beam:
            if node.parent is None:
                assert node.step == 1
            else:
                parent = found.beam[node.parent]
                assert not parent.finished
                assert parent.step < node.step
                assert parent.log_probability >= node.log_probability
        path = [node.piece for node in found.beam if node.is_best]
        assert path == found.target.pieces


def test_a_tree_holds_every_hypothesis_once() -> None:
    one, two = Hypothesis([5], -1.0, -1.0, False), Hypothesis([6], -2.0, -2.0, False)
    longer = Hypothesis([5, 7], -1.5, -1.2, False)
    ended = Hypothesis([5], -1.1, -1.0, True)
    nodes = tree([[one, two], [longer, ended], [ended]], ended)
    assert [(node.tokens, node.parent, node.step, node.finished) for node in nodes] == [
        ((5,), None, 1, False),
        ((6,), None, 1, False),
        ((5, 7), 0, 2, False),
        ((5,), 0, 2, True),
    ]
    assert [node.is_best for node in nodes] == [True, False, False, True]


def test_heads_are_summed_up() -> None:
    back = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    even = torch.full((3, 3), 1 / 3)
    heads = summarise([[AttentionMap("encoder", 2, torch.stack((back, even))[None])]])
    assert (heads[0].kind, heads[0].layer, heads[0].head) == ("encoder", 2, 1)
    assert (heads[0].entropy, heads[0].previous, heads[0].next) == (0.0, 1.0, 0.0)
    assert heads[0].same == pytest.approx(1 / 3)
    assert [head.attends_to for head in heads] == ["previous", None]
    assert heads[1].entropy == pytest.approx(math.log2(3))
    [cross] = summarise([[AttentionMap("cross", 1, even[None, None])]])
    assert (cross.previous, cross.attends_to) == (None, None)


def test_rollout_of_one_layer_is_half_the_attention() -> None:
    encoder = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    decoder = torch.tensor([[1.0]])
    cross = torch.tensor([[0.25, 0.75]])
    kinds = {"encoder": encoder, "decoder": decoder, "cross": cross}
    flows = rollout([AttentionMap(kind, 1, part[None, None]) for kind, part in kinds.items()])
    expected = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    torch.testing.assert_close(flows["encoder"], expected)
    torch.testing.assert_close(flows["cross"], cross @ expected / 2)
    torch.testing.assert_close(flows["decoder"], torch.tensor([[0.5]]))
    assert rollout([AttentionMap("cross", 1, cross[None, None])]) == {}


def test_rollout_shares_every_step_out(translator: Translator) -> None:
    [[first, _]] = explain([translator], LINES)
    flows = first.rollout
    both = torch.cat((flows["cross"], flows["decoder"]), dim=1)
    torch.testing.assert_close(both.sum(1), torch.ones(len(both)))
    torch.testing.assert_close(flows["encoder"].sum(1), torch.ones(len(flows["encoder"])))


def unpacked(tensor: dict[str, Any]) -> np.ndarray:
    steps = np.frombuffer(base64.b64decode(tensor["data"]), "<u2").reshape(tensor["shape"])
    return tensor["low"] + steps * (tensor["high"] - tensor["low"]) / 65535


def test_packed_tensors_are_read_back() -> None:
    tensor = torch.randn(2, 3, 4)
    assert np.abs(unpacked(packed(tensor)) - tensor.numpy()).max() < 1e-4
    assert unpacked(packed(torch.full((2,), 0.5))).tolist() == [0.5, 0.5]


def test_the_page_is_whole_and_needs_no_network(translator: Translator) -> None:
    evil = "</script><script>alert(1)</script><!-- <b>& \u2028"
    values = document(explain([translator], ["one two"], [evil]), FACTS, packed)
    text = page(values, f"How {evil} translates")
    read = Checker(text)
    assert read.open == []
    assert read.referred == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)", text)
    assert len(read.ids) == len({*read.ids})
    assert {*read.labelled} <= {*read.ids}
    script = read.scripts[-1]
    assert len(read.scripts) == 2
    assert {*re.findall(r"\$\(\"([\w-]+)\"\)", script)} <= {*read.ids}
    assert "innerHTML" not in script
    assert json.loads(read.scripts[0]) == json.loads(json.dumps(values))


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
MATRICES = """<script>
$("view").value = "matrix";
$("view").dispatchEvent(new Event("change"));
</script></body>"""


@pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
@pytest.mark.full
@pytest.mark.parametrize("count", [1, 2])
def test_the_page_in_a_browser_has_an_outline_and_words_at_its_matrices(
    count: int, translator: Translator, tmp_path: Path
) -> None:
    [explanations] = explain([translator], LINES)
    text = page(document(count * [explanations], count * FACTS, packed), "A page")
    written = tmp_path / "page.html"
    written.write_text(text.replace("</body>", MATRICES), encoding="utf-8")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile")
    shown = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", written.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout
    Checker(shown).assert_outline()
    matrices = re.findall(r"<svg[^>]*Matrix of head.*?</svg>", shown, re.S)
    first = explanations[0]
    rows, columns = (
        [piece.replace("▁", "_") for piece in side.pieces] for side in (first.target, first.source)
    )
    assert len(matrices) == 2 * count  # heads
    for matrix in matrices:
        words = map(unescape, re.findall(r"<text[^>]*>([^<]*)", matrix))
        assert [*words] == [*columns, *rows]


def test_json_and_page_say_the_same(translator: Translator) -> None:
    [explanations] = explain([translator], LINES)
    plain = document([explanations], FACTS, listed)
    compact = document([explanations], FACTS, packed)
    for one, other in zip(
        *(values["models"][0]["sentences"] for values in (plain, compact)), strict=True
    ):
        for layer, packed_layer in zip(one["attention"], other["attention"], strict=True):
            for name in ("weights", "scores"):
                difference = np.abs(unpacked(packed_layer[name]) - np.array(layer[name]))
                assert difference.max() < 1e-3
        assert one["steps"] == other["steps"]


@pytest.mark.parametrize(
    "name",
    ["rnnsearch", "gnmt", "conv_s2s", "bytenet", "decoder ssru"],
)
def test_every_kind_of_model_has_a_page(name: str, translator: Translator) -> None:
    size = translator.subwords.target_size
    torch.manual_seed(1)
    model = tiny(name).build(size, size, True).eval()
    other = Translator(model, translator.subwords, SearchConfig(max_length_offset=2))
    [explanations] = explain([other], LINES)
    kinds = {layer.kind for layer in explanations[0].attention}
    expected = {"bytenet": set(), "decoder ssru": {"encoder", "cross"}}
    assert kinds == expected.get(name, {"cross"})
    [[given]] = explain([other], LINES[:1], ["eins zwei"])
    assert {target for _, target in given.alignment} == (set() if name == "bytenet" else {0, 1})
    assert Checker(page(document([explanations], FACTS, packed), name)).open == []


def test_a_png_shows_the_picture_of_the_svg(nmt: Command, trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "input.txt"
    text.write_text("one $two$ three\n")
    done = nmt("explain", "--model", trained, text, "--png", "cross:1", "-o", tmp_path / "a.png")
    assert done.status == 0
    pixels = image.imread(tmp_path / "a.png")
    svg = nmt("explain", "--model", trained, text, "--svg", "cross:1").out
    picture = ElementTree.fromstring(svg)
    height, width = (round(300 / 96 * float(picture.get(key, 0))) for key in ("height", "width"))
    assert abs(pixels.shape[0] - height) <= 1
    assert abs(pixels.shape[1] - width) <= 1
    strokes = list(picture.iter("{http://www.w3.org/2000/svg}line"))
    middle = 300 / 96 * (float(strokes[0].get("y1", 0)) + float(strokes[0].get("y2", 0))) / 2
    coloured = (pixels[round(middle), :, :3].std(-1) > 0.01).nonzero()[0]
    centres = [(float(line.get("x1", 0)) + float(line.get("x2", 0))) / 2 for line in strokes]
    assert coloured.min() / 300 * 96 == pytest.approx(min(centres), abs=4)
    assert coloured.max() / 300 * 96 == pytest.approx(max(centres), abs=4)


def test_the_command_writes_a_page_json_or_a_figure(
    nmt: Command, trained: Path, tmp_path: Path
) -> None:
    text = tmp_path / "input.txt"
    text.write_text("".join(f"{line}\n" for line in LINES))
    written = tmp_path / "page.html"
    done = nmt("explain", "--model", trained, text, "--output", written, "--strategy", "beam")
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("explained 2 sentences in ")
    assert Checker(written.read_text(encoding="utf-8")).open == []
    done = nmt("explain", "--model", trained, "--json", stdin=text)
    [values] = json.loads(done.out)["models"]
    assert [each["source"]["text"] for each in values["sentences"]] == [LINES[0], LINES[2]]
    assert (values["languages"], values["update"]) == (["en", "de"], 6)
    text.write_text("\u200b\n \n" + text.read_text())
    done = nmt("explain", "--model", trained, text, "--svg", "encoder:1", "--heads", "2")
    picture = ElementTree.fromstring(done.out)
    assert done.err.startswith("explained 1 sentence in ")
    words = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    pieces = [piece.removeprefix("▁") for piece in values["sentences"][0]["source"]["pieces"]]
    assert words == [*pieces, *pieces]
    weights = np.array(values["sentences"][0]["attention"][0]["weights"][1])
    lines = list(picture.iter("{http://www.w3.org/2000/svg}line"))
    assert len(lines) == (weights >= 0.02).sum()


def test_the_command_sets_models_side_by_side(nmt: Command, trained: Path, corpus: Path) -> None:
    earlier = trained / "update_0000004"
    text = corpus / "test.en"
    done = nmt("explain", "-m", trained, "-m", earlier, "--compare", earlier, text, "--json")
    models = json.loads(done.out)["models"]
    paths = ["ensemble", str(trained), str(earlier), str(earlier)]
    assert [model["model"] for model in models] == paths
    assert [model["update"] for model in models] == [None, 6, 4, 4]
    assert len({len(model["sentences"]) for model in models}) == 1
    targets = [[each["target"]["text"] for each in model["sentences"]] for model in models]
    assert targets[0] == targets[1] == targets[2]
    alone = nmt("explain", "--model", earlier, text, "--json")
    assert json.loads(alone.out)["models"] == models[3:]
    page = nmt("explain", "-m", trained, "--compare", earlier, text).out
    assert f"<title>How {trained.name} and update_0000004 translate</title>" in page


def test_the_text_is_given_by_name_or_with_input(nmt: Command, trained: Path, corpus: Path) -> None:
    text = corpus / "test.en"
    first, *others = (
        nmt("explain", "--model", trained, "--json", *way).out
        for way in ([text], ["--input", text], ["-i", text])
    )
    assert others == [first, first]
    assert json.loads(first)["models"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["--svg", "encoder:3"],
            1,
            "no attention encoder:3; the model has encoder:1, decoder:1, cr",
        ),
        (["--svg", "encoder:1", "--heads", "3"], 1, "head 3: layer 1 has heads 1 to 2"),
        (["--svg", "encoder:1", "--word", "x"], 1, "no piece 'x' among the queries; there are: "),
        (
            ["--svg", "encoder"],
            2,
            "a picture has a form such as encoder:5, and --heads a form such as 1,2",
        ),
        (
            ["--svg", "encoder:" + "9" * 5000],
            2,
            "a picture has a form such as encoder:5, and --heads a form such as 1,2",
        ),
        (
            ["--png", "cross:1", "--heads", "9" * 5000],
            2,
            "a picture has a form such as encoder:5, and --heads",
        ),
        (["--svg", "encoder:1", "--json"], 2, "give one of --svg, --png and --json"),
        (
            ["--svg", "encoder:1", "--compare", "x"],
            2,
            "a picture shows one model; leave out --compare",
        ),
        (["--input", "x"], 2, "give either TEXT or --input"),
        (["--heads", "1"], 2, "--heads and --word choose what --svg or --png draws"),
        (["--target", "/dev/null"], 1, "differ in their number of lines"),
    ],
)
def test_mistakes_cost_a_line(
    nmt: Command, trained: Path, corpus: Path, arguments: list[str], status: int, message: str
) -> None:
    done = nmt("explain", "--model", trained, corpus / "test.en", *arguments)
    assert done.status == status
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("flags", [[], ["--json"], ["--svg", "encoder"], ["--png", "encoder"]])
def test_a_file_of_another_kind_is_refused_before_the_work(
    nmt: Command, corpus: Path, tmp_path: Path, flags: list[str]
) -> None:
    recipe = tmp_path / "nmt.yaml"
    recipe.write_text("seed: 1\n")
    done = nmt("explain", "--model", "none", corpus / "test.en", *flags, "--output", recipe)
    assert done.err == (
        f"nmt: error: {recipe}: exists and holds something else; remove it, or choose another "
        "file\n"
    )
    assert (done.status, recipe.read_text()) == (1, "seed: 1\n")


def test_every_kind_of_file_is_replaced_by_its_own_kind(
    nmt: Command, trained: Path, tmp_path: Path
) -> None:
    text, output = tmp_path / "input.txt", tmp_path / "output"
    text.write_text("one two\n")
    for flags in ([], ["--json"], ["--svg", "encoder:1"], ["--png", "encoder:1"]):
        for _ in range(2):
            done = nmt("explain", "--model", trained, text, *flags, "--output", output)
            assert done.status == 0, done.err
        output.unlink()


def test_the_model_may_have_a_name_that_is_not_utf_8(
    nmt: Command, trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r\udce4n"
    run.symlink_to(trained)
    text = tmp_path / "input.txt"
    text.write_text("one two\n")
    done = nmt("explain", "--model", run, text, "--json")
    assert (done.status, done.err.count("\n")) == (0, 1), done.err
    assert json.loads(done.out)["models"][0]["model"].endswith("/r\udce4n")


def test_text_without_a_word_is_a_mistake(nmt: Command, trained: Path) -> None:
    done = nmt("explain", "--model", trained, "/dev/null")
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith("/dev/null: no line with text, so nothing to explain\n")


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_the_softmax_of_the_page_reads_each_score_a_few_times() -> None:
    script = files("nmt.explain").joinpath("attention.js").read_text(encoding="utf-8")
    count = """
        let reads = 0;
        const state = { kind: "cross" };
        const sum = (values) => values.reduce((total, value) => (reads++, total + value), 0);
        const weights = softmax(Array.from({ length: 500 }, (_, at) => at % 3), 0);
        console.log(JSON.stringify([reads, sum(weights)]));
    """
    ran = subprocess.run(
        ["node", "-e", script + count], capture_output=True, text=True, check=True, timeout=60
    )
    reads, total = json.loads(ran.stdout)
    assert reads == 500
    assert total == pytest.approx(1.0)


def test_a_browser_shows_the_weights_of_the_model(translator: Translator, tmp_path: Path) -> None:
    """Chooses layer and head as a reader does, by keyboard, and reads a weight."""
    playwright = pytest.importorskip("playwright.sync_api")
    [explanations] = explain([translator], LINES)
    written = tmp_path / "page.html"
    written.write_text(page(document([explanations], FACTS, packed), "A page"), encoding="utf-8")
    path = shutil.which("chromium")
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=path, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 390, "height": 844})
        wrong: list[str] = []
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("console", lambda message: wrong.append(message.text))
        shown.on("request", lambda request: wrong.append(request.url))
        shown.goto(written.as_uri())
        assert wrong == [written.as_uri()]
        assert shown.evaluate("document.documentElement.scrollWidth") == 390
        shown.select_option("#sentence", "1")
        shown.select_option("#kind", "encoder")
        shown.click("#no-heads")
        shown.check("#head-2")
        shown.focus("[data-part=picture] [data-query='1']")
        rows = {row[0]: row[1:] for row in table(shown, "[data-part=detail] tr")}
        layer, source = explanations[1].attention[0], explanations[1].source
        assert (layer.kind, layer.key_width) == ("encoder", 8)
        assert rows.pop("to") == ["q·k", "÷ √8", "weight", "unscaled"]
        weights, scores = layer.weights[0, 1, 1], layer.scores[0, 1, 1]  # type: ignore[index]
        for piece, weight, score, other in zip(
            source.pieces, weights, scores, scores.softmax(-1), strict=True
        ):
            numbers = [float(cell.replace("−", "-")) for cell in rows[piece.replace("▁", "_")]]
            expected = [score.item(), score.item() / 8**0.5, weight.item(), other.item()]
            assert numbers == pytest.approx(expected, abs=0.006)
        shown.check("#mean")
        for view in ("matrix", "lines"):
            for name in ("encoder", "decoder", "cross"):
                shown.select_option("#view", view)
                shown.select_option("#kind", name)
                shown.focus("[data-part=picture] [data-query='0']")
        steps = explanations[1].steps
        shown.click(f"[data-part=steps] li:nth-child({len(steps)}) button")
        assert len(table(shown, "[data-part=step] tr")) == 11
        assert wrong == [written.as_uri()]
        browser.close()


def table(shown: Any, rows: str) -> list[list[str]]:
    """The text of every cell."""
    read = "all => all.map(row => [...row.children].map(cell => cell.textContent))"
    cells: list[list[str]] = shown.eval_on_selector_all(rows, read)
    return cells
