"""Texts that would run, break out or fetch if a page took them for anything but text."""

import dataclasses

from stores import synthetic_results

PAYLOADS = (
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    '"><svg onload="window.pwned = 4">',
    "javascript:window.pwned=5",
    "${window.pwned = 6}",
    "{{7*7}}%{x} $7^7$ <b>bold</b>",
    "<!-- not a comment",
    "line\u2028paragraph\u2029end",
    "&lt;script&gt;&amp;",
    "=HYPERLINK(0) " + "long " * 200,
)


def hostile_results():
    """A store whose every text is one of the payloads; each of them is in every field once."""
    results = synthetic_results(
        ("slcp",), ("nre",), (1024,), range(2 * len(PAYLOADS)), thorough=True
    )
    half = len(PAYLOADS)
    runs = results.runs.copy()
    # The first half is done, the second failed; each takes its names from the payloads in turn.
    turn = [PAYLOADS[number % half] for number in range(len(runs))]
    runs["problem"], runs["method"] = turn, turn[3:] + turn[:3]
    runs["device"], runs["proposal"] = turn[5:] + turn[:5], turn[7:] + turn[:7]
    runs["path"], runs["prudent_version"] = turn, turn
    new = dict(zip(runs["run"], runs["problem"], strict=True))
    runs.loc[half:, "state"] = "failed"
    runs.loc[half:, "error"] = turn[half:]
    tables = {}
    for name in ("curves", "history", "ranks", "draws"):
        table = getattr(results, name)
        table = table[table["run"].isin(runs["run"][:half])].copy()
        table["problem"] = table["run"].map(new)
        table["method"] = table["run"].map(dict(zip(runs["run"], runs["method"], strict=True)))
        if "parameter" in table:
            table["parameter"] = table["run"].map(new) + table["parameter"]
        tables[name] = table
    return dataclasses.replace(results, runs=runs, **tables)
