"""The embeddings with convolutions against the way in which version 0.1.0 computed them."""

import time

import torch
from torch import nn
from torch.nn.functional import conv2d, leaky_relu

import prudent
from prudent.estimators import RatioEstimator
from prudent.training.objectives import bce

BATCH = 128
REPEATS = 3


class Plain(nn.Module):
    """An embedding by the layers that hold its weights, one after the other, as in 0.1.0."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        if not isinstance(self.network, prudent.estimators.ResNet18):
            return self.network.layers(x)
        image = self.network.layers[:3](x)
        for block in self.network.layers[3:]:
            image = leaky_relu(block.convolutions(image) + block.shortcut(image))
        return image.mean(dim=(-2, -1))


def fastest(*functions):
    """The shortest CPU time of each function over interleaved repeats."""
    times = [[] for _ in functions]
    for _ in range(REPEATS):
        for times_of_one, function in zip(times, functions, strict=True):
            start = time.process_time()
            function()
            times_of_one.append(time.process_time() - start)
    return [min(times_of_one) for times_of_one in times]


def training_step(estimator, theta, x):
    """A step as in training: standardize, embed, loss, gradients, clipping, update."""
    estimator.adapt(theta, x)
    optimizer = torch.optim.AdamW(estimator.parameters())

    def step():
        loss = bce(estimator(x), theta)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(estimator.parameters(), 1.0)
        optimizer.step()

    return step


def operations_of_dilated(network, x):
    """Additions and multiplications of a step, at the points that the last one depends on."""
    width, points = network.features, x.shape[-1]
    first = len(x) * points // 2 * 2 * x.shape[1] * width
    others = sum(len(x) * (points >> k) * 2 * width * width for k in range(2, points.bit_length()))
    return 2 * (2 * first + 3 * others)  # x needs no gradient


def operations_of_residual(network, x):
    """Additions and multiplications of a step, without those in the margins of zeros."""
    total = 0

    def count(layer, inputs, output):
        nonlocal total
        kernel, sides = layer.weight[:1, :1], inputs[0].shape[-2:]
        taps = conv2d(
            torch.ones(1, 1, *sides), torch.ones_like(kernel), None, layer.stride, layer.padding
        )
        passes = 2 if layer is network.layers[0] else 3  # x needs no gradient
        total += 2 * passes * len(x) * int(taps.sum()) * layer.in_channels * layer.out_channels

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        Plain(network)(x)
    for hook in hooks:
        hook.remove()
    return total


def one_embedding(name, operations):
    """The figures of the embedding of a problem."""
    problem = prudent.problems.get(name)
    theta, x = problem.draw(BATCH, 0)
    networks = problem.networks["nre"]
    torch.manual_seed(0)
    ours = RatioEstimator(problem.prior, problem.dim, problem.x_shape, **networks)
    theirs = RatioEstimator(problem.prior, problem.dim, problem.x_shape, **networks)
    theirs.load_state_dict(ours.state_dict())
    theirs.embedding = Plain(theirs.embedding)
    number = operations(ours.embedding, x)
    ours.adapt(theta, x)
    standard = ours.x_scale(x)
    with torch.no_grad():
        features, before = (estimator.embedding(standard) for estimator in (ours, theirs))
    matrix = torch.randn(1024, 1024)
    fast, slow, embedding, products = fastest(
        training_step(ours, theta, x),
        training_step(theirs, theta, x),
        lambda: ours.embedding(standard).square().sum().backward(),
        lambda: [matrix @ matrix for _ in range(10)],
    )
    rate = 10 * 2 * 1024**3 / products
    error = float((features - before).norm() / before.norm()) / torch.finfo(features.dtype).eps
    return {
        f"0.1.0 over prudent, time of a training step ({name})": slow / fast,
        f"convolutions over a matrix product, operations a second ({name})": number
        / embedding
        / rate,
        f"difference of features from those of 0.1.0, in roundings ({name})": error,
    }


def convolutions():
    """Training steps of the two large problems, and how near they are to the machine's limit."""
    return {
        **one_embedding("gravitational_waves", operations_of_dilated),
        **one_embedding("spatial_sir", operations_of_residual),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for title, value in convolutions().items():
        print(f"{title:<80}  {value:.3g}")
