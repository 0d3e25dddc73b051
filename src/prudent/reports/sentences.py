"""The answer of a report in sentences, made from its cells."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prudent.reports.cells import Cell

# A sentence that names more methods than this is no longer one.
MOST_NAMES = 6
# What is said of one method, and of several, that cannot be trusted.
REASONS = {
    "over-confident": ("is over-confident", "are over-confident"),
    "wrong in places": ("is wrong in places", "are wrong in places"),
    "cannot be measured": ("cannot be measured",) * 2,
    "not enough test pairs": ("has too few test pairs to tell", "have too few test pairs to tell"),
    "no finished run": ("has no finished run", "have no finished run"),
}


@dataclass(frozen=True)
class Case:
    """A problem and a budget, and the cells of the methods that were tried on them."""

    problem: str
    budget: int
    cells: tuple[Cell, ...]

    def of_kind(self, kind: str) -> list[str]:
        """The methods with that verdict."""
        return [cell.name for cell in self.cells if cell.verdict.kind == kind]

    @property
    def best(self) -> Cell | None:
        """The sharpest cell that can be trusted."""
        safe = [cell for cell in self.cells if cell.verdict.trusted and _gain(cell) is not None]
        return max(safe, key=lambda cell: _gain(cell) or 0.0, default=None)


def cases(cells: Iterable[Cell]) -> list[Case]:
    """The cells by problem and budget."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.problem, cell.budget), []).append(cell)
    return [Case(*key, tuple(group)) for key, group in sorted(groups.items())]


def _gain(cell: Cell) -> float | None:
    return cell.estimates["information_gain"].mean


def cost(cell: Cell) -> str:
    """The gain of a cell and its time."""
    known = cell.estimates["train_seconds"].number > 0
    time = f", {cell.text('train_seconds')} to train" if known else ""
    unit = "" if _gain(cell) is None else " nats"
    return f"information gain {cell.text('information_gain')}{unit}{time}"


def _alone(cell: Cell) -> str:
    """A sentence on the only cell of a case."""
    verb = {"not enough test pairs": "has ", "cannot be measured": ""}.get(
        cell.verdict.kind, "is "
    )
    if not cell.num_done:
        return f"{cell.name} has no finished run"
    return f"{cell.name} {verb}{cell.verdict}; {cost(cell)}"


def case_sentence(case: Case) -> str:
    """A sentence on the methods that can be trusted, the sharpest of them and its cost."""
    if len(case.cells) == 1:
        return f"On {case.problem} with {case.budget:,} simulations, {_alone(case.cells[0])}."
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
    for kind, (one, several) in REASONS.items():
        if names := case.of_kind(kind):
            answer += f"; {_listing(names)} {one if len(names) == 1 else several}"
    return f"On {case.problem} with {case.budget:,} simulations, {answer}."


def headline(found: Sequence[Case]) -> str:
    """The answer of the whole report in one sentence."""
    if not any(cell.num_done for case in found for cell in case.cells):
        return "No run is finished yet, so nothing is known about any method."
    if len(found) == 1:
        return case_sentence(found[0])
    names = list(dict.fromkeys(cell.name for case in found for cell in case.cells))
    tried = {n: [c for case in found for c in case.cells if c.name == n] for n in names}
    safe = {n: sum(cell.verdict.trusted for cell in own) for n, own in tried.items()}
    first, *others = sorted(names, key=lambda n: -safe[n] / len(tried[n]))[:MOST_NAMES]
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
