import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command
from tiny_models import PARTS, VOCABULARY, tiny_model
from torch import nn

from nmt.errors import NmtError
from nmt.models import Model, architectures
from nmt.models.laws import broken_laws


@pytest.mark.parametrize("name", [*architectures, *PARTS])
def test_our_models_obey(name: str) -> None:
    model = tiny_model(name).train()
    assert broken_laws(model, VOCABULARY, VOCABULARY) == []
    assert model.training


def test_a_vocabulary_of_special_tokens_alone_is_enough() -> None:
    config = replace(architectures["transformer_tiny"], d_model=8, d_ff=8, heads=2)
    assert broken_laws(config.build(4, 4, True), 4, 4) == []


def sees_the_end(model: Model) -> None:
    decode = model.decode
    model.decode = lambda source, target: decode(source, target.flip(1))


def counts_padding(model: Model) -> None:
    decode = model.decode
    model.decode = lambda source, target: decode(source, target) * source.shape[1]


def packs_otherwise(model: Model) -> None:
    pack = model.decode_packs
    model.decode_packs = lambda *given: 1.01 * pack(*given)


def forgets_its_rows(model: Model) -> None:
    step = model.decode_step
    model.decode_step = lambda tokens, state: step(tokens, state).flip(1) + tokens[..., None]


BROKEN: list[tuple[Callable[[Model], None], list[str]]] = [
    (sees_the_end, ["decode_packs", "decode_step", "later target tokens", "padding"]),
    (counts_padding, ["decode_packs", "decode_step", "padding"]),
    (packs_otherwise, ["decode_packs"]),
    (forgets_its_rows, ["decode_step"]),
]


@pytest.mark.parametrize(("spoil", "words"), BROKEN, ids=[spoil.__name__ for spoil, _ in BROKEN])
def test_each_broken_law_is_told(spoil: Callable[[Model], None], words: list[str]) -> None:
    model = tiny_model("transformer_tiny")
    spoil(model)
    laws = broken_laws(model, VOCABULARY, VOCABULARY)
    assert len(laws) == len(words)
    assert all(word in law for word, law in zip(words, laws, strict=True))


def other_shape(method: str) -> Callable[[Model], None]:
    def spoil(model: Model) -> None:
        given = getattr(model, method)
        setattr(model, method, lambda *values: given(*values)[..., 1:])

    return spoil


SHAPES: list[tuple[Callable[[Model], None], str]] = [
    (other_shape("decode"), "decode must return [2, 4, 16], not [2, 4, 15]"),
    (other_shape("decode_packs"), "decode_packs must return [6, 16], not [6, 15]"),
    (other_shape("decode_step"), "decode_step must return [2, 1, 16], not [2, 1, 15]"),
    (lambda model: setattr(model, "decode", lambda *given: None), "not NoneType"),
    (lambda model: setattr(model, "output", nn.Linear(16, 5)), "output must be an nn.Linear of"),
    (lambda model: delattr(model, "output"), "output must be an nn.Linear of 23 outputs, not None"),
]


@pytest.mark.parametrize(("spoil", "message"), SHAPES)
def test_other_shapes_are_refused(spoil: Callable[[Model], None], message: str) -> None:
    model = tiny_model("transformer_tiny")
    spoil(model)
    with pytest.raises(NmtError) as error:
        broken_laws(model, VOCABULARY, VOCABULARY)
    assert message in str(error.value)


PLUGIN = """
from dataclasses import dataclass

from nmt.models import architectures
from nmt.models.transformer.model import Transformer, TransformerConfig


class Peeking(Transformer):
    def decode(self, source, target):
        BODY

    packs = False
    decode_packs = Transformer.__base__.decode_packs


@architectures.register("peeking")
@dataclass(frozen=True, kw_only=True)
class PeekingConfig(TransformerConfig):
    def build(self, source_vocabulary, target_vocabulary, shared):
        return Peeking(self, source_vocabulary, target_vocabulary)
"""


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (
            "return super().decode(source, target.flip(1))",
            0,
            "nmt: warning: model Peeking: an output of decode depends on later target tokens, "
            "which a search does not know; see docs/guides/extending.md\n",
        ),
        (
            "return super().decode(source, target)[:, 1:]",
            1,
            "nmt: error: model Peeking: decode must return [2, 4, 16], not [2, 3, 16]; correct the "
            "plugin (docs/guides/extending.md)\n",
        ),
        ("return source @ target", 1, ", line 10: RuntimeError: "),
    ],
)
def test_the_model_of_a_plugin_is_checked_before_training(
    body: str,
    status: int,
    said: str,
    train: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "my_peeking.py").write_text(PLUGIN.replace("BODY", body))
    monkeypatch.syspath_prepend(tmp_path)
    entries = dict(architectures._entries)
    monkeypatch.setattr(architectures, "_entries", entries)
    keys = ("--plugin", "my_peeking", "--arch", "peeking", "--max-updates", 2)
    done = train(tmp_path / "run", *keys)
    sys.modules.pop("my_peeking", None)
    assert done.status == status, done.err
    assert said in done.err
    assert (tmp_path / "run").exists() == (status == 0)


def test_our_model_is_not_checked_because_a_plugin_is_loaded(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_nothing.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("nmt.training.run.broken_laws_of", lambda *_: pytest.fail("checked"))
    done = train(tmp_path / "run", "--plugin", "my_nothing", "--max-updates", 2)
    sys.modules.pop("my_nothing", None)
    assert done.status == 0, done.err
