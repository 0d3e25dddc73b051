"""Log-densities that the loss of a step finds where a penalty has evaluated them beside its draws.

A small network takes hardly longer for twice as many rows.
"""

from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from prudent.contracts import Rows
from prudent.coverage.proposals import evaluated


class Step:
    """N pairs, whose ``log_prob``, and ``log_ratio`` with marginal pairs, are evaluated once.

    The theta of marginal pairs are those of the neighbors, or drawn from a pool (M, D). What other
    terms are going to ask for is ``wanted``.
    """

    def __init__(
        self, posterior: Any, theta: Tensor, pool: Tensor | None = None, wanted: Any = ()
    ) -> None:
        self.posterior, self.theta, self.pool, self.wanted = posterior, theta, pool, wanted
        self.found: dict[tuple[str, bool], Tensor] = {}
        self.ratios = "log_ratio" in wanted
        able = not self.ratios or hasattr(posterior, "log_prob_and_ratio")
        self.takes_draws = bool(wanted) and able and isinstance(posterior, Rows)

    @classmethod
    def of(cls, posterior: Any, theta: Tensor) -> "Step":
        """The step whose terms are being evaluated, if it is about these pairs, or a new one."""
        step = RUNNING.get()
        mine = step is not None and step.posterior is posterior and step.theta is theta
        return step if step is not None and mine else cls(posterior, theta)

    @cached_property
    def marginal(self) -> Tensor:
        """The theta of marginal pairs, (N, D)."""
        if self.pool is None:
            return self.theta.roll(1, dims=0)
        return self.pool[torch.randint(len(self.pool), (len(self.theta),))].to(self.theta)

    def once(self, name: str) -> Tensor:
        """The ``log_prob`` (N,), or the ``log_ratio`` of joint and of marginal pairs, (2, N)."""
        key = name, torch.is_grad_enabled()  # what has no graph is of no use to a loss
        if key not in self.found:
            theta = torch.stack((self.theta, self.marginal)) if name == "log_ratio" else self.theta
            self.found[key] = getattr(self.posterior, name)(theta)
        return self.found[key]

    def log_prob_with(self, pair: Tensor, draws: Tensor) -> Tensor:
        """Log-densities (N + R,) of theta, then of draws (R, D) that belong to some pairs (R,)."""
        number, graph = len(self.theta), torch.is_grad_enabled()
        own = [self.theta, self.marginal] if self.ratios else [self.theta]
        every = torch.arange(number, device=pair.device).repeat(len(own))
        rows = self.posterior.rows(torch.cat((every, pair)))
        theta = torch.cat((*own, draws)).unsqueeze(0)
        if self.ratios:
            log_prob, log_ratio = (found[0] for found in rows.log_prob_and_ratio(theta))
            self.found["log_ratio", graph] = log_ratio[: 2 * number].unflatten(0, (2, number))
        else:
            log_prob = evaluated(rows, theta)[0]
        self.found["log_prob", graph] = log_prob[:number]
        return torch.cat((log_prob[:number], log_prob[len(every) :]))


# The step whose terms are being evaluated.
RUNNING: ContextVar[Step | None] = ContextVar("running", default=None)
