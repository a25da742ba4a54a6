import torch
from for_each import for_each
from torch import nn
from torch.nn import functional as F

from nmt.models.rivals.convolution import extend_past, no_past, weight_normalised, windows


@for_each(
    ("kernel", "dilation", "causal"), [(3, 1, False), (5, 2, False), (1, 1, True), (4, 3, True)]
)
def test_a_linear_layer_over_windows_is_a_convolution(
    kernel: int, dilation: int, causal: bool
) -> None:
    x, weight = torch.randn(2, 9, 3), torch.randn(4, 3, kernel)
    reach = (kernel - 1) * dilation
    left = reach if causal else reach // 2
    padded = F.pad(x.transpose(1, 2), (left, reach - left))
    expected = F.conv1d(padded, weight, dilation=dilation).transpose(1, 2)
    own = windows(x, kernel, dilation, causal) @ weight.permute(0, 2, 1).flatten(1).t()
    assert torch.allclose(own, expected, atol=1e-5)


@for_each(("kernel", "dilation"), [(1, 1), (3, 1), (3, 4)])
def test_the_past_gives_the_windows_one_by_one(kernel: int, dilation: int) -> None:
    x = torch.randn(2, 12, 3)
    past = no_past(2, 3, kernel, dilation, like=x)
    steps = []
    for at in range(12):
        window, past = extend_past(past, x[:, at], dilation)
        steps.append(window)
    assert torch.equal(torch.stack(steps, dim=1), windows(x, kernel, dilation, causal=True))


def test_weight_normalisation_is_that_of_torch() -> None:
    torch.manual_seed(2)
    plain, x = nn.Linear(6, 4), torch.randn(3, 6)
    other = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    other.weight, other.bias = plain.weight.detach().clone(), plain.bias
    own = weight_normalised(plain)
    for layer in (own, other):
        layer(x).square().sum().backward()
    for name in ("original0", "original1"):
        mine, theirs = (getattr(each.parametrizations.weight, name).grad for each in (own, other))
        assert torch.allclose(mine, theirs, atol=1e-5)


@torch.no_grad()
def test_a_normalised_weight_is_kept_until_it_changes() -> None:
    layer = weight_normalised(nn.Linear(6, 4))
    kept = layer.weight
    assert layer.weight is kept
    layer.parametrizations.weight.original0.mul_(2)
    assert torch.allclose(layer.weight, 2 * kept)
