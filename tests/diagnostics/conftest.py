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

    def disagreeing(look):
        def draws(*args):
            found = look(*args)
            return found._replace(resolved=torch.zeros_like(found.resolved))

        return draws

    for name in ("one_look", "two_looks"):
        monkeypatch.setattr(_points, name, disagreeing(getattr(_points, name)))
