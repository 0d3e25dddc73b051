"""What the tests of diagnostics share."""

import pytest
import torch

from prudent.diagnostics import _points


@pytest.fixture
def disagreeing(monkeypatch):
    """Weighted draws of which two looks never agree."""

    def draws(*args):
        found = weighted_draws(*args)
        return found._replace(resolved=torch.zeros_like(found.resolved))

    weighted_draws = _points.weighted_draws
    monkeypatch.setattr(_points, "weighted_draws", draws)
