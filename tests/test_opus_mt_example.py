"""The example that fine-tunes a model of OPUS-MT, from the import to the server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from foreign_models import ENGLISH, GERMAN, marian_model
from test_serve import call, server

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "opus_mt"

OPUS_MT = {
    "d_model": 64,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "max_position_embeddings": 512,
    "activation_function": "swish",
    "scale_embedding": True,
}
"""The shape of the model opus-mt-en-de, with an eighth of its width."""


@pytest.mark.full
def test_the_script_leads_from_a_model_and_text_to_a_server(tmp_path: Path, programs: Path) -> None:
    pytest.importorskip("transformers")
    here = Path(shutil.copytree(EXAMPLE, tmp_path / "o", ignore=shutil.ignore_patterns("work")))
    marian_model(tmp_path / "opus-mt-en-de", **OPUS_MT)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        for split, count in (("train", 27), ("valid", 4), ("test", 6)):
            text = "".join(f"{line}\n" for line in lines[:count])
            (corpus / f"{split}.{language}").write_text(text)

    def run() -> list[str]:
        limits = ("--max-updates", "10", "--valid-every", "10", "--save-every", "10")
        search = ("--set", "train.valid_metrics=[]", "--set", "train.best_metric=loss")
        rate = ("--warmup-updates", "5", "--set", "train.ema_decay=0")
        done = subprocess.run(
            ["bash", here / "run.sh", "../opus-mt-en-de", "../corpus", *limits, *search, *rate],
            cwd=here,
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    lines = run()
    assert lines[-2] == "Serve the model, and open http://localhost:5000 in a browser:"
    assert lines[-1].endswith(f"serve --model {here}/work/fine-tuned")
    before, after = ((here / f"work/{run}.de").read_text() for run in ("imported", "fine-tuned"))
    assert before != after
    assert len(after.splitlines()) == 6
    assert run()[-2:] == lines[-2:]  # finished work is not done again
    with server(here / "work" / "fine-tuned") as (address, _):
        status, answer = call(
            f"{address}/translate", {"q": ENGLISH[0], "source": "en", "target": "de"}
        )
    assert (status, answer["translatedText"]) == (200, after.splitlines()[0])
