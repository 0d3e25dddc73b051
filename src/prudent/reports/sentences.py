"""The answer of a report in sentences, made from its cells."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prudent.reports.cells import Cell
from prudent.reports.numbers import Estimate

# A sentence that names more methods than this is no longer one.
MOST_NAMES = 6


@dataclass(frozen=True)
class Case:
    """What a user has: a problem and a budget.

    Args:
        problem: The name of the problem.
        budget: The number of simulations.
        cells: The cells of the methods that were tried.
    """

    problem: str
    budget: int
    cells: tuple[Cell, ...]

    @property
    def num_short(self) -> int:
        """The number of cells that are over-confident."""
        return sum(cell.verdict.kind == "over-confident" for cell in self.cells)

    @property
    def best(self) -> Cell | None:
        """The sharpest cell that can be trusted."""
        known = [c for c in self.cells if c.verdict.trusted and sharpness(c).mean is not None]
        return max(known, key=lambda cell: sharpness(cell).mean or 0.0, default=None)


def cases(cells: Iterable[Cell]) -> list[Case]:
    """The cells by problem and budget."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.problem, cell.budget), []).append(cell)
    return [Case(*key, tuple(group)) for key, group in sorted(groups.items())]


def sharpness(cell: Cell) -> Estimate:
    """The information gain, which says how sharp a cell is, or the log posterior of older runs."""
    gain = cell.estimates["information_gain"]
    return gain if gain.mean is not None else cell.estimates["log_posterior"]


def cost(cell: Cell) -> str:
    """The gain of a cell and its time."""
    known = cell.estimates["train_seconds"].number > 0
    time = f", {cell.text('train_seconds')} to train" if known else ""
    gained = cell.estimates["information_gain"]
    if gained.mean is None:
        return f"log posterior {cell.text('log_posterior')}{time}"
    return f"information gain {cell.text('information_gain')} nats{time}"


def case_sentence(case: Case) -> str:
    """Which methods can be trusted in this case, the sharpest of them and its cost."""
    place = f"{case.problem} with {case.budget:,} simulations"
    safe = [cell.name for cell in case.cells if cell.verdict.trusted]
    if not safe:
        answer = "no method is known not to be over-confident"
    elif len(safe) == 1:
        answer = f"only {safe[0]} is not over-confident"
    else:
        answer = f"{_listing(safe)} are not over-confident"
    if case.best is not None:
        useless = ", no more than the prior" if case.best.verdict.kind == "uninformative" else ""
        sharpest = "" if len(safe) == 1 else f"; the sharpest of these is {case.best.name}"
        answer += f"{sharpest} ({cost(case.best)}{useless})"
    return f"On {place}, {answer}{_rest(case)}."


def _rest(case: Case) -> str:
    """The methods that cannot be trusted, by reason."""
    reasons = {
        "over-confident": ("is over-confident", "are over-confident"),
        "not enough test pairs": ("has too few test pairs to tell",) * 2,
        "no finished run": ("has no finished run", "have no finished run"),
    }
    parts = []
    for kind, (one, several) in reasons.items():
        names = [cell.name for cell in case.cells if cell.verdict.kind == kind]
        if names:
            parts.append(f"{_listing(names)} {one if len(names) == 1 else several}")
    return "".join(f"; {part}" for part in parts)


def headline(found: Sequence[Case]) -> str:
    """The answer of the whole report in one sentence."""
    if not any(cell.num_done for case in found for cell in case.cells):
        return "No run is finished yet, so nothing is known about any method."
    if len(found) == 1:
        return case_sentence(found[0])
    names = list(dict.fromkeys(cell.name for case in found for cell in case.cells))
    tried = {n: [c for case in found for c in case.cells if c.name == n] for n in names}
    safe = {n: sum(cell.verdict.trusted for cell in own) for n, own in tried.items()}
    ranking = sorted(names, key=lambda n: -safe[n] / len(tried[n]))
    first, *others = ranking[:MOST_NAMES]
    sentence = f"{first} is not over-confident in {safe[first]} of {len(tried[first])} cases"
    sentence += "".join(f", {name} in {safe[name]} of {len(tried[name])}" for name in others)
    best = [case.best.name for case in found if case.best is not None]
    if best:
        most = max(map(best.count, names))
        top = [name for name in names if best.count(name) == most]
        often = "" if most == len(best) else "most often "
        share = f"({most} of {len(found)}{' each' if len(top) > 1 else ''})"
        sentence += f"; the sharpest that can be trusted is {often}{_listing(top, 'or')} {share}"
    return f"{sentence}."


def _listing(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"
