import pytest
import torch
from torch import nn

from nmt.models.rivals import recurrent
from nmt.models.rivals.recurrent import AdditiveAttention, BothDirections, LSTMStack, turn_around

MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])


def test_turning_around_leaves_padding_where_it_is() -> None:
    x = torch.tensor([[1.0, 2, 3, 4], [5, 6, 0, 0]])[..., None]
    expected = torch.tensor([[4.0, 3, 2, 1], [6, 5, 0, 0]])[..., None]
    assert torch.equal(turn_around(x, MASK), expected)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_both_directions_are_those_of_torch_on_packed_sentences(kind: type) -> None:
    torch.manual_seed(1)
    own = BothDirections(kind, 3, 5)
    other = kind(3, 5, batch_first=True, bidirectional=True)
    weights = own.forwards.state_dict()
    weights |= {f"{name}_reverse": value for name, value in own.backwards.state_dict().items()}
    other.load_state_dict(weights)
    x = torch.randn(2, 4, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, MASK.sum(1), batch_first=True)
    expected, _ = nn.utils.rnn.pad_packed_sequence(other(packed)[0], batch_first=True)
    assert torch.allclose(own(x, MASK)[MASK], expected[MASK], atol=1e-6)


def test_recurrent_layers_compute_in_fp32_where_autocast_would_take_fp16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    layer, x = nn.LSTM(3, 5, batch_first=True), torch.randn(2, 4, 3)
    expected, _ = layer(torch.cat((x, x), 1).bfloat16().float())
    monkeypatch.setattr(recurrent, "autocast_takes_fp16", lambda device: True)
    with torch.autocast("cpu", torch.bfloat16):
        first, state = recurrent.recur(layer, x.bfloat16())
        second, _ = recurrent.recur(layer, x.bfloat16(), state)
    torch.testing.assert_close(torch.cat((first, second), 1), expected, rtol=1e-6, atol=1e-6)


def test_additive_attention_of_a_worked_example() -> None:
    attention = AdditiveAttention(1, 1, 1)
    for weight in attention.parameters():
        nn.init.ones_(weight)
    nn.init.zeros_(attention.query.bias)
    memory = torch.tensor([[[0.0], [1.0], [5.0]]])
    keys = attention.project(memory)
    found = attention(torch.zeros(1, 1, 1), keys, memory, torch.tensor([[True, True, False]]))
    # Scores tanh(0) and tanh(1) = 0.761594, so the second weighs e^0.761594 / (1 + e^0.761594).
    torch.testing.assert_close(found, torch.tensor([[[0.681704]]]))


def test_an_lstm_stack_adds_inputs_but_no_contexts_from_the_stated_layer_on() -> None:
    stack = LSTMStack([4, 4], 4, first_residual=1, dropout=0.0, context=2)
    for weight in stack.layers[1].parameters():
        nn.init.zeros_(weight)  # so that the second layer gives zeros
    x, context = torch.randn(3, 5, 4), torch.randn(3, 5, 2)
    first, _ = stack.layers[0](torch.cat((x, context), dim=-1))
    assert torch.equal(stack(x, context)[0], first)
