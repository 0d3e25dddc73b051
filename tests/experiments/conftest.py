"""Limits that fit the machine."""

import time

import pytest
from sweeping import finish, prepare, start


@pytest.fixture
def limit(tmp_path_factory):
    """Seconds that are plenty for a run here and now, its process included."""
    place = tmp_path_factory.mktemp("limit")
    prepare(place, [160, 161])
    begun = time.monotonic()
    assert finish(start(place))[0] == 0
    return 10 + 3 * round(time.monotonic() - begun)
