"""The few exceptions that users meet, and the one way to say that a name is unknown.

Every message says what came, what was expected and what to do. The command line prints the same
text, without a traceback.
"""

import difflib
from collections.abc import Iterable


class PrudentError(Exception):
    """Base of all errors that prudent raises on purpose."""


class InputError(PrudentError, ValueError):
    """An argument, option or name that cannot be used."""


class DataError(InputError):
    """Simulations that cannot be used: wrong shapes, not in pairs, not finite."""


class StoreError(PrudentError):
    """A file that is missing, damaged, or of another version."""


class TrainingError(PrudentError, RuntimeError):
    """Training that had to stop."""


def unknown_name(kind: str, name: object, known: Iterable[str], hint: str = "") -> InputError:
    """The error for a name that is not registered: the nearest name, then all of them.

    >>> print(unknown_name("problem", "slpc", ["gaussian", "slcp"]))
    unknown problem `slpc`. Did you mean `slcp`? Known: gaussian slcp.
    """
    names = sorted(known)
    spelled = {one.lower(): one for one in names}
    nearest = difflib.get_close_matches(str(name).lower(), spelled, n=1, cutoff=0.5)
    guess = f" Did you mean `{spelled[nearest[0]]}`?" if nearest else ""
    tail = f" {hint}" if hint else ""
    return InputError(
        f"unknown {kind} `{shortened(name)}`.{guess} Known: {' '.join(names)}.{tail}"
    )


def one_line(error: BaseException, longest: int = 500) -> str:
    r"""An error in one line: its text, after its type where the text was not made for users.

    >>> one_line(KeyError("theta")), one_line(InputError("no file\n  a.npz."))
    ("KeyError: 'theta'", 'no file a.npz.')
    """
    try:
        text = " ".join(str(error).split())
    except BaseException:  # an exception of other people's code may not even be printable
        text = ""
    if not isinstance(error, PrudentError) or not text:
        text = ": ".join(part for part in (type(error).__name__, text) if part)
    return shortened(text, longest)


def printable(name: str) -> str:
    r"""A name from a file, with nothing in it that would begin a line or steer a terminal.

    >>> printable("a\nb")
    'a?b'
    """
    return "".join(one if one.isprintable() else "?" for one in name)


def shortened(value: object, longest: int = 60) -> str:
    """The text of a value, cut where it is too long for a message."""
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
