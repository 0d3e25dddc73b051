import json

import pytest
import torch
from torch import nn

from prudent.estimators.networks import MLP, DilatedCNN, ResNet18, SeriesCNN

# Class, its kind, an observation's shape, the features.
CASES = [
    (SeriesCNN, "series_cnn", (1001, 2), 504),
    (ResNet18, "resnet18", (3, 50, 50), 512),
    (DilatedCNN, "dilated_cnn", (2, 8192), 16),
]
each = pytest.mark.parametrize(
    ("network", "kind", "shape", "features"), CASES, ids=[case[1] for case in CASES]
)


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def head(inputs, width, activation):
    """Three hidden layers on features and two parameters, then one log ratio."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), activation()),
        *(nn.Linear(width, width), activation()),
        *(nn.Linear(width, width), activation()),
        nn.Linear(width, 1),
    )


@each
def test_shapes_and_gradients(network, kind, shape, features):
    torch.manual_seed(0)
    embedding = network()
    output = embedding(torch.rand(2, *shape))
    assert embedding.features == features
    assert output.shape == (2, features)
    output.square().sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in embedding.parameters())
    assert all(float(weight.grad.abs().max()) > 0 for weight in embedding.parameters())


@each
def test_rebuilt_from_json(network, kind, shape, features):
    torch.manual_seed(0)
    embedding = network()
    arguments = json.loads(json.dumps(embedding.spec))
    assert arguments.pop("kind") == kind
    again = network(**arguments)
    assert again.spec == embedding.spec
    again.load_state_dict(embedding.state_dict())
    x = torch.rand(2, *shape)
    assert torch.equal(again.eval()(x), embedding.eval()(x))


def test_rebuilt_from_json_with_other_arguments():
    for small, shape in (
        (SeriesCNN(length=20, channels=3, width=4, num_blocks=3, scale=2.0), (20, 3)),
        (DilatedCNN(num_layers=5, channels=1, width=4), (1, 32)),
        (ResNet18(channels=1), (1, 28, 40)),
    ):
        arguments = json.loads(json.dumps(small.spec))
        del arguments["kind"]
        again = type(small)(**arguments)
        assert again.spec == small.spec
        assert again(torch.rand(2, *shape)).shape == (2, small.features)


@pytest.mark.parametrize(
    ("embedding", "width", "activation", "total"),
    [
        (SeriesCNN, 128, nn.SELU, 99_673),
        (ResNet18, 256, nn.LeakyReLU, 11_436_225),
        (DilatedCNN, 128, nn.SELU, 42_497),
    ],
)
def test_number_of_weights_with_the_head_of_the_paper(embedding, width, activation, total):
    network = embedding()
    assert count(network) + count(head(network.features + 2, width, activation)) == total


def test_series_lengths():
    network = SeriesCNN()
    values, lengths = torch.rand(1, 2, 1001), []
    for layer in network.layers:
        values = layer(values)
        if isinstance(layer, nn.MaxPool1d):
            lengths.append(values.shape[-1])
    assert lengths == [501, 501, 251, 251, 126, 126, 63, 63]


def test_series_is_divided_and_turned():
    torch.manual_seed(0)
    network = SeriesCNN()
    x = torch.rand(2, 1001, 2)
    expected = network.layers(torch.stack((x[..., 0], x[..., 1]), dim=1) / 100)
    assert torch.allclose(network(x), expected, atol=1e-6)
    # Negative control: without the division the features are others.
    assert not torch.allclose(network(100 * x), expected, atol=1e-3)


def test_dilated_reach_is_the_whole_series():
    # Exactly one point is left, and it depends on the first and on the last sample.
    torch.manual_seed(0)
    network = DilatedCNN()
    x = torch.rand(1, 2, 8192, requires_grad=True)
    assert network.layers[:-1](x).shape == (1, 16, 1)
    (gradient,) = torch.autograd.grad(network(x).sum(), x)
    assert bool((gradient[0, :, [0, -1]] != 0).all())


def test_residual_quirks():
    network = ResNet18()
    modules = list(network.modules())
    assert not any(isinstance(module, (nn.ReLU, nn.SELU)) for module in modules)
    assert {m.negative_slope for m in modules if isinstance(m, nn.LeakyReLU)} == {0.01}
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 17 + 3
    assert all(convolution.bias is None for convolution in convolutions)
    # Two in the first block of each stage, one in each of three shortcuts.
    norms = [m.num_features for m in modules if isinstance(m, nn.BatchNorm2d)]
    assert sorted(norms) == [64] * 2 + [128] * 3 + [256] * 3 + [512] * 3
    blocks = list(network.layers)[3:]
    has_norm = [any(isinstance(m, nn.BatchNorm2d) for m in block.modules()) for block in blocks]
    assert has_norm == [True, False] * 4
    sizes, image = [], network.layers[:3](torch.rand(2, 3, 50, 50))
    assert image.shape == (2, 64, 13, 13)
    for block in blocks:
        image = block(image)
        sizes.append(image.shape[-1])
    assert sizes == [13, 13, 7, 7, 4, 4, 2, 2]


@each
def test_rows_are_independent_in_evaluation(network, kind, shape, features):
    torch.manual_seed(0)
    embedding = network().eval()
    x = torch.rand(3, *shape)
    with torch.no_grad():
        assert torch.allclose(embedding(x)[1:2], embedding(x[1:2]), atol=1e-5)


@pytest.mark.parametrize("hidden", [(16, 16), ()])
def test_shared_inputs_are_seen_once_and_give_the_same(hidden):
    torch.manual_seed(0)
    network = MLP(7, 2, hidden)
    values, shared = torch.randn(5, 4, 3), torch.randn(4, 4)
    joined = network(torch.cat((values, shared.expand(5, 4, 4)), dim=-1))
    torch.testing.assert_close(network(values, shared), joined)
    assert not torch.allclose(network(values, shared.flip(0)), joined)
