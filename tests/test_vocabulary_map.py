"""Shortlists in exports for CTranslate2: its vocabulary map, and search with it."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from fuzz.seals import seal
from test_export import assert_same, random_run, searched, sentences

from nmt.data.shortlist import Origin, Shortlist
from nmt.data.vocabulary import EOS, PAD, UNK
from nmt.errors import NmtError
from nmt.formats import export_formats, export_run
from nmt.formats.ctranslate2 import vocabulary_map
from nmt.inference.ctranslate2 import CTranslate2Translator
from nmt.inference.engines import load_runs
from nmt.inference.execution import Execution
from nmt.runs import Run
from nmt.runs.exports import Export
from nmt.search import Greedy
from nmt.subwords.subwords import Subwords

if find_spec("ctranslate2") is None:
    pytest.skip("CTranslate2 is not installed", allow_module_level=True)

WHOLE = Execution(threads=1)
LISTED = replace(WHOLE, shortlist=True)


def some_shortlist(subwords: Subwords) -> Shortlist:
    """A shortlist of up to three targets for each source token, also for UNK and EOS."""
    draw = np.random.default_rng(1)
    candidates = draw.integers(EOS, subwords.target_size, (subwords.source_size, 3), np.int32)
    candidates[PAD] = EOS
    origin = Origin(
        subwords=subwords.fingerprint,
        data="",
        target_vocabulary=subwords.target_size,
        shared_vocabulary=subwords.shared,
        pairs=0,
        iterations=0,
    )
    return Shortlist(np.array([7, 5], np.int32), candidates, origin)


@pytest.fixture(params=["shared", "separate"])
def listed(request: pytest.FixtureRequest, trained: Path, tmp_path: Path) -> Path:
    """A run with random weights and a shortlist."""
    subwords, changes = Subwords.load(trained), dict[str, Any]()
    if request.param == "separate":
        model = (trained / "subwords.model").read_bytes()
        subwords, changes = Subwords(model, model), {"tied_embeddings": "decoder"}
    run = random_run(tmp_path / "run", subwords, **changes)
    Run.open(run).give_shortlist(some_shortlist(subwords))
    return run


def exported(run: Path) -> Export:
    return export_run(run, export_formats["ctranslate2"], "fp32", run.parent / "exported")


def test_ctranslate2_searches_among_the_tokens_of_the_shortlist(listed: Path) -> None:
    export, shortlist = exported(listed), Run.open(listed).shortlist
    assert export.has_shortlist
    sources, targets = export.vocabularies
    translator = CTranslate2Translator(export, searched(), LISTED)._model.translator
    draw = random.Random(2)
    lines = [draw.choices(range(4, 30), k=4) for _ in range(5)]
    batches = [*([line] for line in lines), [[UNK, 9], [8]]]
    for batch in batches:
        padded = [[*line, EOS, *[PAD] * (4 - len(line))] for line in batch]
        allowed = set(np.flatnonzero(shortlist.chosen(np.array(padded)).any(0)).tolist())
        assert len(allowed) < len(targets)
        for result in translator.translate_batch(
            [[sources[id_] for id_ in line] for line in batch],
            use_vmap=True,
            beam_size=1,
            # All tokens that CTranslate2 can begin with.
            return_alternatives=True,
            num_hypotheses=len(allowed),
            max_decoding_length=1,
        ):
            first = {targets.index(hypothesis[0]) for hypothesis in result.hypotheses if hypothesis}
            assert {*first, EOS} == allowed, batch


@pytest.mark.parametrize("strategy", [Greedy(), searched().strategy], ids=["greedy", "beam"])
def test_a_lone_sentence_is_searched_as_by_this_package(listed: Path, strategy: Any) -> None:
    alone = replace(searched(), batch_tokens=1, strategy=strategy)
    native = load_runs([listed], alone, Execution(shortlist=True))
    restricted = CTranslate2Translator(exported(listed), alone, LISTED)
    whole = CTranslate2Translator(exported(listed), alone, WHOLE)
    ours, theirs, others = (
        dict(translator.find(sentences(10))) for translator in (native, restricted, whole)
    )
    for at, hypotheses in ours.items():
        assert_same(hypotheses, theirs[at])
    assert sum(ours[at][0].tokens != others[at][0].tokens for at in ours) > 5


def test_a_shortlist_of_all_tokens_changes_nothing(listed: Path) -> None:
    run = Run.open(listed)
    everything = np.arange(run.subwords.target_size, dtype=np.int32)
    run.give_shortlist(replace(run.shortlist, frequent=everything))
    export = exported(listed)
    whole, restricted = (CTranslate2Translator(export, searched(), it) for it in (WHOLE, LISTED))
    theirs = dict(restricted.find(sentences(20)))
    for at, hypotheses in whole.find(sentences(20)):
        assert_same(hypotheses, theirs[at])


def test_auto_makes_an_export_for_each_shortlist(
    run: Path, dataset: Path, corpus: Path, nmt: Command
) -> None:
    command = ("translate", corpus / "test.en", "--model", run, "--strategy", "greedy")
    auto = (*command, "--engine", "auto")

    def made() -> set[str]:
        return {path.name for path in (run / "exports").iterdir()}

    assert nmt(*auto).status == 0
    [plain] = made()
    few = nmt("shortlist", "--data", dataset, "--model", run, "--first", 1, "--best", 1)
    assert few.status == 0, few.err
    done = nmt(*auto, "--shortlist", "--batch-tokens", 1)
    [listed] = made() - {plain}
    assert done.err.startswith(f"engine ctranslate2: {run / 'exports' / listed}\n")
    assert done.out == nmt(*command, "--engine", "nmt", "--shortlist").out
    # The export without the shortlist stays, and has none.
    assert nmt(*auto).err.startswith(f"engine ctranslate2: {run / 'exports' / plain}\n")
    assert not Export.open(run / "exports" / plain, "ctranslate2").has_shortlist
    assert nmt("shortlist", "--data", dataset, "--model", run, "--first", 60).status == 0
    whole = nmt(*auto, "--shortlist")
    assert whole.out == nmt(*auto).out
    [relearned] = made() - {plain}
    assert relearned != listed


def test_an_export_without_a_shortlist_is_refused(
    trained: Path, corpus: Path, tmp_path: Path, nmt: Command
) -> None:
    path = tmp_path / "exported"
    nmt("export", "--model", trained, "--output", path)
    for engine in ("auto", "ctranslate2"):
        flags = ("--engine", engine, "--shortlist", "--strategy", "greedy", "--model", path)
        done = nmt("translate", corpus / "test.en", *flags)
        assert (done.status, done.out) == (1, "")
        assert done.err == (
            f"nmt: error: {path}: an export without a shortlist; learn one for the run with nmt "
            "shortlist, and make the export again with nmt export\n"
        )


def test_a_piece_with_a_tab_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subwords = Subwords.load(trained)
    pieces = [f"piece {id_}".replace(" ", "\t" if id_ == 9 else "-") for id_ in range(60)]
    monkeypatch.setattr("nmt.formats.ctranslate2.vocabularies", lambda _: (pieces, pieces))
    with pytest.raises(NmtError) as error:
        vocabulary_map(some_shortlist(subwords), subwords)
    assert str(error.value) == (
        "CTranslate2's vmap.txt cannot hold the piece 'piece\\t9' of the shortlist; translate with "
        "nmt itself"
    )


def test_a_forged_map_costs_one_line(listed: Path) -> None:
    path = exported(listed).path
    (path / "vmap.txt").write_bytes(b"")  # which would kill the process
    seal(path / "vmap.txt")
    with pytest.raises(NmtError, match=f"^{path}: CTranslate2 cannot use it: vmap.txt does not"):
        CTranslate2Translator(Export.open(path, "ctranslate2"), searched(), LISTED)
