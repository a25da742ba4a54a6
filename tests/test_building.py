"""Models that are built for given weights: whatever a recipe says, memory is asked for these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from for_each import for_each
from torch import Tensor, nn

from nmt.errors import NmtError
from nmt.models import Model, ModelConfig
from nmt.recipe.config import build
from nmt.recipe.plugins import import_plugins
from nmt.runs import weights_of
from nmt.runs.building import build_for, build_new, build_with

TINY = {
    "arch": "transformer_tiny",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
}


def build_tiny(**changes: Any) -> Model:
    config: ModelConfig = build(ModelConfig, {**TINY, **changes}, "model")  # type: ignore[type-abstract]
    return config.build(50, 50, True)


@for_each(
    ("changes", "message"),
    [
        ({"encoder_layers": 10_000_000}, "the model is larger than the weights of the checkpoint$"),
        ({"encoder_layers": 60}, "the model is larger than the weights of the checkpoint$"),
        ({"d_model": 16 << 32}, "the model is larger than the weights of the checkpoint$"),
        ({"d_model": 1 << 61}, "no such model can be built: "),
        ({"encoder_layers": 2}, "different shapes: encoder.1.* and missing in the checkpoint"),
        ({"d_ff": 8}, r"different shapes: .* is \[8.* in the model and \[32.* in the checkpoint"),
    ],
)
def test_sizes_are_held_against_the_weights_before_memory_is_asked_for(
    changes: dict[str, Any], message: str
) -> None:
    weights = weights_of(build_tiny())
    with pytest.raises(NmtError, match=f"^{message}"):
        build_with(lambda: build_tiny(**changes), weights)
    with pytest.raises(NmtError, match=f"^{message}"):
        build_for(lambda: build_tiny(**changes), weights)


def test_no_random_numbers_are_drawn_for_weights_that_are_there() -> None:
    weights = weights_of(build_tiny())
    before = torch.get_rng_state()
    model = build_with(build_tiny, weights)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in weights_of(model).items())
    build_tiny()
    assert not torch.equal(torch.get_rng_state(), before)


class Unusual(Model):
    """Has values beside its weights, and reads them while it is built."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.output = nn.Linear(2, 3)
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("table", torch.empty(size).normal_(generator=generator))
        self.first = float(self.get_buffer("table")[0])

    def decode(self, source: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def start(self, source: Tensor) -> Any:
        raise NotImplementedError

    def decode_step(self, tokens: Tensor, state: Any) -> Tensor:
        raise NotImplementedError


def test_what_a_model_holds_beside_its_weights_is_as_it_makes_it() -> None:
    model = Unusual()
    loaded = build_with(Unusual, weights_of(model))
    assert torch.equal(loaded.output.weight, model.output.weight)
    assert torch.equal(loaded.get_buffer("table"), model.get_buffer("table"))
    assert loaded.first == model.first


def test_a_tensor_beside_the_weights_is_not_larger_without_bound() -> None:
    weights = weights_of(Unusual())
    with pytest.raises(NmtError, match="the model is larger than the weights"):
        build_with(lambda: Unusual(1 << 25), weights)


@for_each(
    "make",
    [
        lambda: torch.zeros(1).expand(1 << 25),
        lambda: torch.arange(1 << 45),
        lambda: torch.arange(5, 1 << 45),
        lambda: torch.arange(0, 1 << 47, 4),
        lambda: torch.arange(start=5, end=1 << 45),
    ],
)
def test_however_a_tensor_is_made_it_is_not_larger_without_bound(make: Any) -> None:
    def build_large() -> Model:
        model = Unusual()
        model.register_buffer("large", make())
        return model

    with pytest.raises(NmtError, match="the model is larger than the weights"):
        build_with(build_large, weights_of(Unusual()))


def test_weights_of_few_numbers_are_not_many_without_bound() -> None:
    def build_many() -> Model:
        model = Unusual()
        for number in range(9):
            model.register_parameter(f"scale{number}", nn.Parameter(torch.empty(1)))
        return model

    with pytest.raises(NmtError, match="the model is larger than the weights"):
        build_with(build_many, weights_of(Unusual()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"d_model": 1 << 31},
            r"the weights of this model take more than the [\d,.]+ GB of memory",
        ),
        ({"encoder_layers": 1 << 40, "d_ff": 1 << 20}, "the weights of this model take more than"),
        ({"d_model": 1 << 61}, "no such model can be built: "),
    ],
)
def test_a_new_model_beyond_the_memory_is_refused_before_it_is_allocated(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is allocated up to the limit stays with the process, which other tests fork.
    monkeypatch.setattr("nmt.runs.building.host_memory", lambda: 10**9)
    with pytest.raises(NmtError, match=message):
        build_new(lambda: build_tiny(**changes))


def test_a_new_model_is_initialised_as_ever() -> None:
    torch.manual_seed(1)
    expected = weights_of(build_tiny())
    torch.manual_seed(1)
    weights = weights_of(build_new(build_tiny))
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    torch.manual_seed(1)
    drawn = torch.randn(3)
    torch.manual_seed(1)
    seen: list[Tensor] = []
    build_new(lambda: (seen.append(torch.randn(3)), build_tiny())[1])
    assert torch.equal(seen[-1], drawn)


def test_a_lack_of_memory_is_not_a_mistake_in_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Model] = []
    text = "def build(built, model):\n    if built:\n        raise MemoryError\n"
    (tmp_path / "my_large.py").write_text(f"{text}    built.append(model)\n    return model\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    import_plugins(["my_large"], "--plugin", tmp_path)
    large = sys.modules.pop("my_large")
    monkeypatch.setitem(sys.modules, "my_large", large)
    with pytest.raises(MemoryError):
        build_new(lambda: large.build(built, build_tiny()), ["my_large"])
    assert built


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("self.widht", "AttributeError: 'Faulty' object has no attribute 'widht'"),
        ("nn.Linear(2, 3).widht", "AttributeError: 'Linear' object has no attribute 'widht'"),
        ("nn.Linear('2', 3)", "TypeError: "),
    ],
)
def test_an_error_in_the_code_of_a_plugin_is_a_line_with_its_place(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_faulty.py"
    text = "from torch import nn\nclass Faulty:\n    def build(self):\n        "
    file.write_text(f"{text}{line}\n")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    import_plugins(["my_faulty"], "--plugin", tmp_path)
    faulty = sys.modules.pop("my_faulty")
    monkeypatch.setitem(sys.modules, "my_faulty", faulty)
    weights = weights_of(build_tiny())
    expected = f"no such model can be built: {file}, line 4: {said}"
    for build_faulty in (
        lambda: build_new(faulty.Faulty().build, ["my_faulty"]),
        lambda: build_with(faulty.Faulty().build, weights, ["my_faulty"]),
    ):
        with pytest.raises(NmtError) as error:
            build_faulty()
        assert str(error.value).startswith(expected)
        assert str(error.value).endswith(
            "; correct the plugin, or the sizes in the recipe's section model"
        )


def test_an_error_outside_the_plugins_keeps_its_traceback() -> None:
    import_plugins(["wave"], "--plugin")
    with pytest.raises(AttributeError):
        build_new(lambda: build_tiny().widht, ["wave"])  # type: ignore[arg-type, return-value]


@pytest.mark.full
def test_building_imports_no_sympy() -> None:
    """On the meta device ``torch.arange`` would import it, for a third of a second."""
    code = (
        "import sys; from test_building import build_tiny, build_with, weights_of;"
        "build_with(build_tiny, weights_of(build_tiny()));"
        "assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
