"""What the tests of diagnostics share."""

import pytest
import torch

from prudent.datasets import provenance
from prudent.diagnostics import _points


@pytest.fixture
def any_theta(monkeypatch):
    """Pairs made for their posterior, whose theta need not follow the prior."""
    monkeypatch.setattr(provenance, "strays", lambda *args: "")


@pytest.fixture
def disagreeing(monkeypatch):
    """Weighted draws of which two looks never agree."""

    def draws(*args):
        found = weighted_draws(*args)
        return found._replace(resolved=torch.zeros_like(found.resolved))

    weighted_draws = _points.weighted_draws
    monkeypatch.setattr(_points, "weighted_draws", draws)
