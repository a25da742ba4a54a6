"""Gates and states of every registered architecture are those that the model computes with."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import PARTS, VOCABULARY, some_sources, tiny
from torch import Tensor

from nmt.data.packing import Packing
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.models import Model, architectures
from nmt.models.bytenet import ByteNet
from nmt.models.conv_s2s import ConvS2S
from nmt.models.gnmt import GNMT
from nmt.models.recurrences import Recurrence
from nmt.models.rnnsearch import RNNsearch
from nmt.models.transformer import Transformer


@pytest.fixture(params=[*architectures, *PARTS])
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(1)
    return tiny(request.param).build(VOCABULARY, VOCABULARY, True).eval()


def pair() -> tuple[Tensor, Tensor]:
    """Three padded sentences of 7, 4 and 2 source tokens, and 6, 4 and 5 target tokens."""
    target = random_tokens(3, 6)
    target[:, 0] = BOS
    for row, length in enumerate((6, 4, 5)):
        target[row, length:] = PAD
    return some_sources(), target


def random_tokens(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(EOS + 1, VOCABULARY, (rows, length), generator=generator)


@torch.no_grad()
def test_every_layer_without_attention_has_maps(model: Model) -> None:
    source, target = pair()
    maps = model.activity_maps(source, target)
    names = [(part.kind, part.layer, part.name) for part in maps]
    if isinstance(model, Transformer):
        sublayers = [layer.attention for layer in model.decoder]
        expected = [
            ("decoder", number, name)
            for number, sublayer in enumerate(sublayers, 1)
            if isinstance(sublayer, Recurrence)
            for name in ("gate", "state")
        ]
        attends = {(part.kind, part.layer) for part in model.attention_maps(source, target)}
        assert not attends & {name[:2] for name in names}
    else:
        depths = {RNNsearch: (1, 1), GNMT: (2, 2), ConvS2S: (3, 2), ByteNet: (4, 4)}.get(
            type(model),
            (0, 0),  # a language model, which has attention alone
        )
        name = "gate" if isinstance(model, ConvS2S) else "state"
        expected = [
            (kind, number, name)
            for kind, depth in zip(("encoder", "decoder"), depths, strict=True)
            for number in range(1, depth + 1)
        ]
    assert names == expected
    for part in maps:
        tokens = source if part.kind == "encoder" else target
        assert part.values.shape[:2] == tokens.shape
        assert not part.values[tokens == PAD].any()
        assert part.values[tokens != PAD].any()
        assert (part.reach is None) != isinstance(model, (ConvS2S, ByteNet))
        if part.name == "gate":
            assert ((part.values >= 0) & (part.values <= 1)).all()


@torch.no_grad()
def test_padding_moves_no_gate_and_no_state(model: Model) -> None:
    source, target = pair()
    together = model.activity_maps(source, target)
    alone = model.activity_maps(source[1:2, :4], target[1:2, :4])
    for batch, sentence in zip(together, alone, strict=True):
        torch.testing.assert_close(batch.values[1:2, :4], sentence.values, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_states_of_recurrent_decoders_are_those_of_the_search(model: Model) -> None:
    if not isinstance(model, (RNNsearch, GNMT)):
        return
    source, target = pair()
    maps = [part for part in model.activity_maps(source, target) if part.kind == "decoder"]
    state: Any = model.start(source)
    for step in range(4):  # without padding
        model.step(target[:, step : step + 1], state)
        hidden = [state.rows[0], *state.rows[-2 * len(maps) + 2 :: 2]] if maps[1:] else state.rows
        for part, expected in zip(maps, hidden, strict=True):
            torch.testing.assert_close(part.values[:, step], expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_activity_is_that_of_packs_in_training(model: Model) -> None:
    """With it each layer's output in a pass without padding is computed again."""
    if not model.packs:
        return
    source, target = pair()
    maps = model.activity_maps(source, target)
    calls: dict[int, tuple[Any, Any]] = {}
    probes = model.activity_probes()
    hooks = [
        probe.module.register_forward_hook(
            lambda _, arguments, output, at=at: calls.update({at: (arguments, output)})
        )
        for at, probe in enumerate(probes)
    ]
    lengths = [(side != PAD).sum(1).numpy() for side in (source, target)]
    model.decode_packs(source[source != PAD], target[target != PAD], Packing.of(*lengths))
    for hook in hooks:
        hook.remove()
    for at, (probe, part) in enumerate(zip(probes, maps, strict=True)):
        arguments, output = calls[at]
        tokens = source if part.kind == "encoder" else target
        values = part.values[tokens != PAD]
        if isinstance(probe.module, Recurrence):
            if part.name == "state":
                again = probe.module.read(arguments[0], values)
                torch.testing.assert_close(again, output, atol=1e-5, rtol=1e-4)
            else:
                states = maps[at + 1].values
                x = torch.zeros(*tokens.shape, arguments[0].shape[-1])
                x[tokens != PAD] = arguments[0]
                positions = torch.arange(tokens.shape[1])[:, None]
                inputs = probe.module.gates(x, positions)[1]
                before = torch.nn.functional.pad(states, (0, 0, 1, 0))[:, :-1]
                again = (part.values * before + inputs)[tokens != PAD]
                torch.testing.assert_close(again, states[tokens != PAD], atol=1e-5, rtol=1e-4)
        elif isinstance(model, ConvS2S):
            first = output.chunk(2, dim=-1)[0]
            glu = torch.nn.functional.glu(output, dim=-1)
            torch.testing.assert_close(first * values, glu, atol=1e-5, rtol=1e-4)
        elif part.kind == "decoder":  # ByteNet's encoder has more positions than tokens
            torch.testing.assert_close(values, output[: len(values)], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_convolutions_reach_as_far_as_they_say(model: Model) -> None:
    if not isinstance(model, (ConvS2S, ByteNet)):
        return
    source, target = random_tokens(1, 40), random_tokens(1, 40)
    before = model.activity_maps(source, target)
    for at in (0, 7, 30):
        for kind, tokens in (("encoder", source), ("decoder", target)):
            changed = tokens.clone()
            changed[0, at] = (changed[0, at] - EOS) % (VOCABULARY - EOS - 1) + EOS + 1
            pairs = (changed, target) if kind == "encoder" else (source, changed)
            after = model.activity_maps(*pairs)
            for one, other in zip(before, after, strict=True):
                if one.kind == kind:
                    moved = np.nonzero((one.values != other.values).any(-1)[0].numpy())[0]
                    earlier, later = one.reach  # type: ignore[misc]
                    assert moved.min() == max(0, at - later)
                    assert moved.max() == min(39, at + earlier)
