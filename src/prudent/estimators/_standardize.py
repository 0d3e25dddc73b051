"""Numbers of any size put near zero, as networks need them."""

import torch
from torch import Tensor, nn

# The interquartile range of a standard normal.
NORMAL_IQR = 1.3489795
# Quartiles of this many numbers per component are accurate enough and cheap for any data set.
MAX_VALUES = 2**17
# Numbers of float32 may be so far apart, in units of the spread.
COARSE = 0.005


class Standardize(nn.Module):
    r"""An element-wise map fixed by data that puts numbers of any size near zero.

    Location and scale are the median and the interquartile range, which a few extreme simulations
    cannot shift. Squashing, :math:`c \operatorname{asinh}((x - m) / cs)`, is linear near the
    center and logarithmic in the tails, so that heavy-tailed simulators neither saturate the
    network nor vanish in a sliver of its input. The map is one-to-one: nothing is lost or clipped.

    Args:
        shape: The shape of location and scale: one per component, or () for one in all.
        squash: The distance from the center, in units of the spread, beyond which the tails are
            compressed; 0 for never.
        dtype: The type of location and scale, in which numbers are standardized.
    """

    location: Tensor
    scale: Tensor

    def __init__(
        self, shape: tuple[int, ...], *, squash: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.squash = squash
        self.register_buffer("location", torch.zeros(shape, dtype=dtype))
        self.register_buffer("scale", torch.ones(shape, dtype=dtype))

    @torch.no_grad()
    def adapt(self, values: Tensor) -> None:
        """Take location and scale from data (N, ...).

        A component whose quartiles coincide is scaled by its standard deviation, a constant one
        is only centered.
        """
        columns = values.detach().double().reshape(-1, max(1, self.location.numel()))
        columns = columns[:: max(1, len(columns) // MAX_VALUES)]
        ordered = columns.sort(dim=0).values
        quarter = [ordered[round(q * (len(ordered) - 1))] for q in (0.25, 0.5, 0.75)]
        scale = (quarter[2] - quarter[0]) / NORMAL_IQR
        scale = torch.where(scale > 0, scale, columns.std(dim=0, correction=0))
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        self.location.copy_(quarter[1].reshape(self.location.shape))
        # The smallest normal number keeps a denormal scale from dividing to infinity.
        tiny = torch.finfo(self.scale.dtype).tiny
        self.scale.copy_(scale.reshape(self.scale.shape).clamp(min=tiny))

    def forward(self, values: Tensor) -> Tensor:
        """The standardized values, of the same shape."""
        centered = (values - self.location) / self.scale
        return self.squash * (centered / self.squash).asinh() if self.squash else centered

    def inverse(self, values: Tensor) -> Tensor:
        """Back to the original units."""
        centered = self.squash * (values / self.squash).sinh() if self.squash else values
        return self.location + self.scale * centered

    def coarse(self, values: Tensor) -> Tensor:
        """Whether each component of the data lost its digits in float32, far from zero."""
        spacing = torch.finfo(torch.float32).eps * self.location.abs()
        lost = spacing > COARSE * self.scale
        if values.dtype == torch.float64 and bool(lost.any()):
            lost &= (values == values.float()).all(dim=0)
        return lost

    def log_scale(self) -> Tensor:
        """The sum of the log scales, by which log-densities of standardized values are larger."""
        return self.scale.log().sum()
