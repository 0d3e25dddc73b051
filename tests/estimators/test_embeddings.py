import json

import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, conv2d, leaky_relu, max_pool1d, max_pool2d, selu

from prudent.errors import InputError
from prudent.estimators._convolution import convolve, groups, normalize
from prudent.estimators.networks import MANY_IMAGES, MLP, DilatedCNN, ResNet18, SeriesCNN

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


def plain_series(state, x, scale=100.0):
    """The layers of the paper one after the other: convolution, SELU, maximum."""
    values = conv1d((x / scale).transpose(1, 2), state["layers.0.weight"], state["layers.0.bias"])
    for i, name in enumerate(names(state, "weight")[1:]):
        values = selu(conv1d(values, state[name], state[bias(name)], padding=1))
        values = max_pool1d(values, 3, stride=2 - i % 2, padding=1)
    return values.flatten(1)


def plain_dilated(state, x):
    """Every point of every layer, by dilated convolutions."""
    values = conv1d(x, state["layers.0.weight"], state["layers.0.bias"])
    for i, name in enumerate(names(state, "weight")[1:]):
        values = selu(conv1d(values, state[name], state[bias(name)], dilation=2**i))
    return values.flatten(1)


def plain_residual(state, x, *, training):
    """ResNet-18 by torch's convolutions; running averages in ``state`` are updated."""

    def normalized(image, name):
        if f"{name}.weight" not in state:
            return image
        if training:
            variance, mean = torch.var_mean(image, dim=(0, 2, 3), correction=0)
            size = image.numel() / len(mean)
            latest = (mean, variance * size / (size - 1))
            for key, new in zip(("running_mean", "running_var"), latest, strict=True):
                state[f"{name}.{key}"] = 0.9 * state[f"{name}.{key}"] + 0.1 * new.detach()
        else:
            mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        centered = (image - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        weight, shift = state[f"{name}.weight"], state[f"{name}.bias"]
        return centered * weight[:, None, None] + shift[:, None, None]

    image = leaky_relu(conv2d(x, state["layers.0.weight"], stride=2, padding=3))
    image = max_pool2d(image, 3, stride=2, padding=1)
    for i in range(3, 11):
        block, stride = f"layers.{i}", 2 if i in (5, 7, 9) else 1
        inner = conv2d(image, state[f"{block}.convolutions.0.weight"], stride=stride, padding=1)
        inner = leaky_relu(normalized(inner, f"{block}.convolutions.1"))
        inner = conv2d(inner, state[f"{block}.convolutions.3.weight"], padding=1)
        inner = normalized(inner, f"{block}.convolutions.4")
        if f"{block}.shortcut.0.weight" in state:
            image = conv2d(image, state[f"{block}.shortcut.0.weight"], stride=stride)
            image = normalized(image, f"{block}.shortcut.1")
        image = leaky_relu(inner + image)
    return image.mean(dim=(2, 3))


def names(state, ending):
    return [name for name in state if name.endswith(ending)]


def bias(name):
    return name.replace("weight", "bias")


def compare(network, plain, x, **tolerance):
    """Outputs, and the gradients of x and of every parameter, against a plain transcription."""
    state = {name: value.clone() for name, value in network.state_dict().items()}
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    expected_weights = {
        name: state[name].requires_grad_() for name, _ in network.named_parameters()
    }
    output, expected = network(inputs[0]), plain(state, inputs[1])
    torch.testing.assert_close(output, expected, **tolerance)
    upstream = torch.randn_like(expected)
    weights = dict(network.named_parameters())
    found = torch.autograd.grad(output, [inputs[0], *weights.values()], upstream)
    wanted = torch.autograd.grad(expected, [inputs[1], *expected_weights.values()], upstream)
    for name, one, other in zip(["x", *weights], found, wanted, strict=True):
        assert float(other.abs().max()) > 0, name
        scale = float(other.abs().max())
        error = float((one - other).abs().max()) / scale
        assert error < tolerance["rtol"], f"{name}: {error}"
    return state


# Enough digits that a wrong formula cannot hide behind rounding.
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.mark.parametrize(
    ("num_layers", "channels", "width", "length", "number"),
    [
        (13, 2, 16, 8192, 2),
        (5, 1, 4, 32, 3),
        (5, 3, 4, 32, 5000),  # more than fit in a part
        (5, 3, 4, 33, 3),  # longer: two points are left
        (5, 3, 4, 77, 3),
        (1, 2, 4, 2, 3),
        (0, 2, 4, 1, 3),
        (0, 2, 4, 5, 3),
    ],
)
def test_dilated_equals_plain_transcription(num_layers, channels, width, length, number):
    torch.manual_seed(0)
    network = DilatedCNN(num_layers, channels, width).double()
    x = torch.randn(number, channels, length, dtype=torch.float64)
    assert network(x).shape == (number, width * (length - 2**num_layers + 1))
    compare(network, plain_dilated, x, **EXACT)


def test_dilated_in_single_precision():
    torch.manual_seed(0)
    compare(DilatedCNN(), plain_dilated, torch.randn(4, 2, 8192), rtol=1e-4, atol=1e-6)


def test_dilated_refuses_what_does_not_fit():
    network = DilatedCNN(num_layers=5, channels=2)
    with pytest.raises(InputError, match="expected series of 32 points or more, got 31"):
        network(torch.zeros(1, 2, 31))
    for channels in (1, 4):  # channels must not be taken for points
        with pytest.raises(RuntimeError, match="shapes"):
            network(torch.zeros(2, channels, 32))
    assert network(torch.zeros(0, 2, 32)).shape == (0, 16)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("number", "channels", "height", "width"),
    [(MANY_IMAGES, 3, 50, 50), (MANY_IMAGES + 3, 1, 20, 40), (17, 2, 9, 3), (3, 3, 20, 20)],
)
def test_residual_equals_plain_transcription(number, channels, height, width, training):
    torch.manual_seed(0)
    network = ResNet18(channels).double()
    network(torch.rand(5, channels, height, width, dtype=torch.float64))  # averages of a batch
    network.train(training)
    x = torch.rand(number, channels, height, width, dtype=torch.float64)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}

    def plain(state, x):
        return plain_residual(state, x, training=training)

    state = compare(network, plain, x, **EXACT)
    for name, buffer in network.named_buffers():
        if "num_batches" in name:
            assert buffer == before[name] + training
        else:
            torch.testing.assert_close(buffer, state[name], **EXACT)
            assert torch.equal(buffer, before[name]) != training


def test_residual_in_single_precision():
    # Gradients jump where an activation is within rounding of zero, so they are not compared.
    torch.manual_seed(0)
    network, x = ResNet18(), torch.rand(2 * MANY_IMAGES, 3, 50, 50)
    state = {name: value.double() for name, value in network.state_dict().items()}
    exact = plain_residual(state, x.double(), training=True)
    plain = plain_residual(network.state_dict(), x, training=True)
    outputs = (network(x).detach(), plain)
    errors = [float((y - exact).norm() / exact.norm()) for y in outputs]
    assert errors[0] < 3 * errors[1] < 1e-4


def test_batch_statistics_keep_their_digits():
    # Sums of 21,632 numbers in single precision, one after the other, are off by 6e-5.
    torch.manual_seed(0)
    images = (10 + torch.randn(13, 13, 128, 8)).permute(0, 3, 1, 2)
    layer, exact = nn.BatchNorm2d(8), nn.BatchNorm2d(8).double()
    expected = exact(images.double()).detach()
    torch.testing.assert_close(
        normalize(images, layer).detach().double(), expected, rtol=0, atol=5e-6
    )
    torch.testing.assert_close(layer.running_var.double(), exact.running_var, rtol=5e-7, atol=0)


def test_matrices_first_made_for_inference_serve_training_too():
    groups.cache_clear()
    network = ResNet18()
    with torch.inference_mode():
        network(torch.rand(MANY_IMAGES, 3, 20, 20))
    network(torch.rand(MANY_IMAGES, 3, 20, 20)).sum().backward()


def test_series_equals_plain_transcription():
    torch.manual_seed(0)
    for network, length in ((SeriesCNN(), 1001), (SeriesCNN(20, 2, 4, 3), 20)):
        x = 100 * torch.randn(5, length, 2, dtype=torch.float64)
        compare(network.double(), plain_series, x, **EXACT)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 2), (3, 1), (4, 4), (7, 6), (13, 5)])
def test_convolution_as_products(height, width, stride, kernel):
    torch.manual_seed(0)
    images = torch.randn(4, 3, height, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, kernel, kernel, dtype=torch.float64, requires_grad=True)
    found = convolve(images.permute(2, 1, 3, 0), weight, stride).permute(3, 1, 0, 2)
    expected = conv2d(images, weight, stride=stride, padding=kernel // 2)
    torch.testing.assert_close(found, expected, **EXACT)
    upstream = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, (images, weight), upstream),
        torch.autograd.grad(expected, (images, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, **EXACT)


def test_names_and_shapes_of_weights_are_those_of_saved_models():
    pairwise = {f"layers.{i}": (16, 16, 2) for i in range(1, 27, 2)}
    expected = {"layers.0.weight": (16, 2, 1), "layers.0.bias": (16,)}
    expected |= {f"{name}.weight": shape for name, shape in pairwise.items()}
    expected |= {f"{name}.bias": (16,) for name in pairwise}
    assert {name: tuple(v.shape) for name, v in DilatedCNN().state_dict().items()} == expected
    state = ResNet18().state_dict()
    assert len(state) == 20 + 5 * 11
    assert state["layers.9.convolutions.0.weight"].shape == (512, 256, 3, 3)
    assert state["layers.9.shortcut.1.running_var"].shape == (512,)
    assert all(value.is_contiguous() for value in state.values())
    assert len(SeriesCNN().state_dict()) == 18
