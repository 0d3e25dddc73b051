"""Peers that are not installed skip their tests, and where that is forbidden, fail them."""

import os

import pytest

FORBID = "PRUDENT_FORBID_SKIPS"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get(FORBID):
        report.outcome, report.longrepr = "failed", f"skipped, which {FORBID} forbids"
    return report
