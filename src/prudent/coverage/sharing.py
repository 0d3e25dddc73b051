"""Log-densities that several terms of an objective want, evaluated in one go.

A small network takes hardly longer for twice as many rows. So the penalty does not evaluate its
draws alone but beside the points of the loss, which finds its log-densities there afterwards.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from prudent.contracts import DensityAndRatio, Rows
from prudent.coverage.proposals import evaluated


class Step:
    """The pairs of one step, whose log-densities are evaluated once, whoever asks first.

    Args:
        posterior: The posteriors of N observations.
        theta: The nominal parameters (N, D).
        pool: The theta (M, D) that marginal pairs are made of; None for those of the neighbors.
        wanted: What other terms are going to ask for: ``"log_prob"``, ``"log_ratio"`` or both.
    """

    def __init__(
        self,
        posterior: Any,
        theta: Tensor,
        pool: Tensor | None = None,
        wanted: Collection[str] = (),
    ) -> None:
        self.posterior, self.theta, self.pool, self.wanted = posterior, theta, pool, wanted
        self._found: dict[tuple[str, bool], Tensor] = {}

    @classmethod
    def of(cls, posterior: Any, theta: Tensor) -> "Step":
        """The step whose terms are being evaluated, if it is about these pairs, or a new one."""
        step = _STEP.get()
        if step is not None and step.posterior is posterior and step.theta is theta:
            return step
        return cls(posterior, theta)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The block in which this is the current step."""
        token = _STEP.set(self)
        try:
            yield self
        finally:
            _STEP.reset(token)

    @cached_property
    def marginal(self) -> Tensor:
        """The theta of marginal pairs, (N, D)."""
        if self.pool is None:
            return self.theta.roll(1, dims=0)
        return self.pool[torch.randint(len(self.pool), (len(self.theta),))].to(self.theta)

    @cached_property
    def takes_draws(self) -> bool:
        """Whether draws can be evaluated beside what other terms want."""
        both = "log_ratio" not in self.wanted or isinstance(self.posterior, DensityAndRatio)
        return both and bool(self.wanted) and isinstance(self.posterior, Rows)

    def log_prob(self) -> Tensor:
        """Log-densities of the nominal parameters, (N,)."""
        return self._once("log_prob", lambda: self.posterior.log_prob(self.theta))

    def log_ratios(self) -> Tensor:
        """Log ratios of joint and of marginal pairs, (2, N)."""
        both = (self.theta, self.marginal)
        return self._once("log_ratio", lambda: self.posterior.log_ratio(torch.stack(both)))

    def _once(self, name: str, evaluate: Callable[[], Tensor]) -> Tensor:
        key = (name, torch.is_grad_enabled())  # what has no graph is of no use to a loss
        if key not in self._found:
            self._found[key] = evaluate()
        return self._found[key]

    def log_prob_with(self, pair: Tensor, draws: Tensor) -> Tensor:
        """Log-densities of the nominal parameters and of R draws, (N + R,).

        They come from one evaluation with all that other terms want.

        Args:
            pair: The numbers of the pairs that the draws belong to, (R,).
            draws: The draws, (R, D).
        """
        number, ratios = len(self.theta), "log_ratio" in self.wanted
        own = [self.theta, self.marginal] if ratios else [self.theta]
        every = torch.arange(number, device=pair.device).repeat(len(own))
        rows = self.posterior.rows(torch.cat((every, pair)))
        theta = torch.cat((*own, draws)).unsqueeze(0)
        graph = torch.is_grad_enabled()
        if ratios:
            log_prob, log_ratio = (found[0] for found in rows.log_prob_and_ratio(theta))
            self._found["log_ratio", graph] = log_ratio[: 2 * number].unflatten(0, (2, number))
        else:
            log_prob = evaluated(rows, theta)[0]
        self._found["log_prob", graph] = log_prob[:number]
        return torch.cat((log_prob[:number], log_prob[len(every) :]))

    def forget(self) -> None:
        """Evaluate anew what is asked from now on."""
        self._found.clear()


# The step whose terms are being evaluated.
_STEP: ContextVar[Step | None] = ContextVar("step", default=None)
