"""What the pages name exists: links, commands with their options, keys, figures, functions.

The site itself is built by ``make docs``, which also runs the tutorials.
"""

import ast
import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from prudent._tables import Mistakes
from prudent.cli.entry import cli
from prudent.experiments.config import KEYS
from prudent.experiments.sweep import read_blocks, read_job
from prudent.priors.files import from_table
from prudent.reports.figures import FIGURES

ROOT = Path(__file__).parents[2]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "prudent"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts) + [ROOT / "README.md"]
FENCE = re.compile(r"^( *)(`{3,}|:{3,})(.*?)\n(.*?)^\1\2$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ROLE = re.compile(r"\{py:\w+\}`~?([\w.]+)`|^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)
# A placeholder in upper case stands for a file or directory.
COMMAND = re.compile(r"^!?(prudent(?: .*)?)$", re.MULTILINE)
INLINE = re.compile(r"`(prudent [^`]+)`")
DRAW = re.compile(r"""draw\(["'](\w+)["']""")


def page_id(page):
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def load_generated():
    spec = importlib.util.spec_from_file_location("generated", DOCS / "_ext" / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = load_generated()


def blocks(text, language):
    """What is between fences of a language."""
    return [body for _, _, head, body in FENCE.findall(text) if head.strip() == language]


def slug(heading):
    """The anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page):
    text = FENCE.sub("", GENERATED.fill(page.read_text()))
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def broken_links(page, text):
    """Relative links and images that lead nowhere."""
    # Code is not read for links; the cards of the front page are, which are fenced by colons.
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]+`", "", text)
    found = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        path = page if not target else page.parent / target
        wrong = not path.is_file() or (anchor and anchor not in anchors(path))
        found += [link] if wrong else []
    return found


def misused(line):
    """Why a command line cannot be understood, or None; nothing is executed."""
    words = shlex.split(line, comments=True)[1:]
    context = cli.make_context("prudent", [], resilient_parsing=True)
    if not words or words[0].startswith("-"):
        return _parse(cli, words)
    command = cli.get_command(context, words[0])
    if command is None:
        return f"no command {words[0]}"
    return _parse(command, words[1:])


def _parse(command, words):
    context = click.Context(command)
    try:
        # The parser alone knows the options; types and files are not looked at.
        _, left, _ = command.make_parser(context).parse_args(args=list(words))
    except click.UsageError as error:
        return error.format_message()
    return f"left over: {left}" if left and command is not cli else None


def command_lines(text):
    """Commands in code, and those inside sentences that are more than a name."""
    for _, _, head, body in FENCE.findall(text):
        if head.strip() in ("", "sh") or "ipython3" in head:
            yield from COMMAND.findall(body)
    yield from INLINE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@every_page
def test_links_and_images_resolve(page):
    assert broken_links(page, page.read_text()) == []


def test_the_link_checker_sees_what_is_broken():
    page = DOCS / "index.md"
    text = "[a](method.md) [b](nowhere.md) ![c](images/none.png) [d](method.md#no-such-heading)"
    text += " [e](https://example.org) [f](method.md#gradients) `[g](code.md)`"
    assert broken_links(page, text) == [
        "nowhere.md",
        "images/none.png",
        "method.md#no-such-heading",
    ]


@every_page
def test_commands_are_understood(page):
    wrong = {line: misused(line) for line in command_lines(page.read_text())}
    assert {line: reason for line, reason in wrong.items() if reason} == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("prudent trian slcp -o run", "no command trian"),
        ("prudent train slcp --weigth 5 -o run", "--weigth"),
        ("prudent diagnose one two", "two"),
        ("prudent --verbose", "--verbose"),
    ],
)
def test_commands_with_a_mistake_are_not(line, reason):
    assert reason in misused(line)


def test_some_commands_are_found():
    lines = list(command_lines((DOCS / "start.md").read_text()))
    assert "prudent diagnose runs/first" in lines
    assert sum(len(list(command_lines(page.read_text()))) for page in PAGES) > 20


@every_page
def test_sweeps_and_settings_have_known_keys(page):
    for text in blocks(page.read_text(), "toml"):
        settings = tomllib.loads(text)
        if {"kind", "family", "parameter"} & set(settings):
            assert from_table(settings)[0].event_shape == (2,)
            continue
        mistakes = mistakes_of(settings)
        if "problem" not in settings:  # a part of a file
            mistakes = [text for text in mistakes if not text.startswith("missing; ")]
        assert mistakes == []


def mistakes_of(settings):
    mistakes = Mistakes()
    read_blocks(settings, (), mistakes)
    read_job(settings, mistakes)
    return [reason for _, reason in mistakes.found]


def test_an_unknown_key_is_noticed():
    assert "unknown key." in mistakes_of(tomllib.loads("buget = 5"))[0]
    text = mistakes_of(tomllib.loads("[slurm]\nquue = 'long'"))
    assert any("Did you mean `queue`" in reason for reason in text)


@every_page
def test_figures_that_are_drawn_exist(page):
    assert set(DRAW.findall(page.read_text())) <= set(FIGURES)


@every_page
def test_functions_that_are_named_exist(page):
    missing = [
        name for pair in ROLE.findall(page.read_text()) if not exists(name := "".join(pair))
    ]
    assert missing == []


# Libraries that some modules of ours cannot be imported without.
PEERS = ("sbi", "nflows")


def exists(name):
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:number]))
        except ImportError as error:
            if error.name in PEERS:  # not installed here, so that only the text can tell
                return {*parts[number:]} <= DEFINED
            continue
        for part in parts[number:]:
            fields = getattr(found, "__dataclass_fields__", {})
            if not hasattr(found, part) and part not in fields:
                return False
            found = getattr(found, part, None)
        return True
    return False


def test_a_function_that_does_not_exist_is_noticed():
    assert exists("prudent.fit")
    assert not exists("prudent.fitt")
    assert not exists("prudent.coverage.CoveragePenalty.papers")


SOURCES = sorted((ROOT / "src" / "prudent").rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}
DEFINED = {
    node.id if isinstance(node, ast.Name) else node.name
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef | ast.FunctionDef)
    or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
}
OPTIONS = {"--help", "--version"} | {
    word for command in cli.commands.values() for one in command.params for word in one.opts
}
# Those of the programs that a cluster runs.
FOREIGN = {"--constraint", "--lifetime", "--lifetime-stagger"}


def texts(tree):
    """All strings of a module: docstrings, messages, and what f-strings are made of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def made_up(text):
    """The names, functions and options in a text that do not exist."""
    names = re.findall(r"\bprudent(?:\.\w+)+", text)
    roles = re.findall(r":(?:func|class|meth|attr|data):`~?([\w.]+)`", text)
    options = re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    found = [name for name in names if not exists(name)]
    found += [name for name in roles if not {*name.split(".")} <= {"prudent", *DEFINED, *PARTS}]
    return found + [one for one in options if one not in OPTIONS | FOREIGN]


PARTS = {part for path in SOURCES for part in path.with_suffix("").relative_to(ROOT).parts}


@pytest.mark.parametrize("path", SOURCES, ids=page_id)
def test_texts_of_the_code_name_what_exists(path):
    assert [wrong for text in texts(TREES[path]) for wrong in made_up(text)] == []


def test_a_text_that_names_something_else_is_noticed():
    text = "Use prudent.adopt, :func:`fitt` or --wait; prudent.fit, :meth:`paper` and --debug are."
    assert made_up(text) == ["prudent.adopt", "fitt", "--wait"]


def missing_files(text):
    """Paths are from the repository or the package, in a row of the map also from its folder."""
    missing = []
    for line in text.splitlines():
        folder = re.match(r"\| `(\w+/)`", line)
        places = [ROOT, SOURCE, SOURCE / folder[1]] if folder else [ROOT, SOURCE]
        for path in re.findall(r"`([\w./]+\.py)`", line):
            missing += [] if any((place / path).is_file() for place in places) else [path]
    return missing


def test_files_that_the_map_names_exist():
    text = (DOCS / "design.md").read_text()
    assert text.count(".py`") > 40
    assert missing_files(text) == []
    lines = "| `problems/` | `slcp.py`, `mg2.py` |\n| a figure | `slcp.py`, `tests/test_cli.py` |"
    assert missing_files(lines) == ["mg2.py", "slcp.py"]


def test_every_page_begins_with_what_it_gives():
    for page in PAGES:
        if page.parent in (DOCS, ROOT) and page.name in ("index.md", "README.md"):
            continue
        text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)
        first = text.split("\n\n")[1] if text.lstrip().startswith("# ") else text
        told = re.match(r"(What you will (have|find)|At the end you have)", first.strip())
        assert told, f"{page_id(page)} begins with {first[:60]!r}"


def test_every_page_is_in_the_contents():
    parts = blocks((DOCS / "index.md").read_text(), "{toctree}")
    lines = [line for part in parts for line in part.splitlines()]
    listed = {f"docs/{line}.md" for line in lines if line and line[0] != ":"}
    pages = {page_id(page) for page in PAGES} - {"README.md", "docs/index.md"}
    assert pages == listed


def test_the_two_questions_are_one_click_from_the_front_page():
    front = (DOCS / "index.md").read_text()
    assert ":link: guides/which-method" in front
    assert ":link: guides/coverage-curve" in front


def test_generated_parts_name_everything():
    """Every command, option, key, metric and figure is in a part, and no marker is unknown."""
    parts = {name: part() for name, part in GENERATED.PARTS.items()}
    for name, command in cli.commands.items():
        assert f"## `prudent {name}`" in parts["commands"]
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.opts[0] in parts["commands"]
    keys = {"run_keys": set(), "training_keys": set()}
    for key, setting in KEYS.items():
        keys["training_keys" if "." in key else "run_keys"].add(setting.name)
        row = [
            line
            for line in parts["training_keys" if "." in key else "run_keys"].splitlines()
            if line.startswith(f"| `{setting.name}` |")
        ]
        assert GENERATED.plain(f"{setting.help}.") in row[0]
        assert row[0].endswith(f"| {setting.expected} |")
    for part, names in {**keys, "methods": GENERATED.METHODS}.items():
        for name in names:
            assert f"| `{name}` |" in parts[part]
    for name in FIGURES:
        assert f'draw("{name}", ' in parts["figures"]
    assert [line.split(" | ")[0] for line in parts["exit_codes"].splitlines()[2:]] == [
        "| 0",
        "| 1",
        "| 2",
        "| 130",
        "| 143",
    ]
    used = {name for page in PAGES for name in GENERATED.MARKER.findall(page.read_text())}
    assert used == set(parts)


def test_an_unknown_part_ends_the_build():
    with pytest.raises(KeyError, match="nothing"):
        GENERATED.fill("# Page\n\n% generated: nothing\n")


def test_the_short_text_for_machines_links_pages_that_exist():
    links = LINK.findall((DOCS / "llms.txt").read_text())
    assert len(links) > 10
    for link in links:
        assert (DOCS / link.replace(".html", ".md")).is_file(), link


def test_the_readme_shows_what_the_study_measured(tmp_path):
    """`python bench/unseen.py figure` mends this, and draws the picture beside it."""
    study = GENERATED.script("unseen")
    measured = study.everything()
    expected = study.marked(study.SHORT_HEAD, study.short_table(measured))
    text = (ROOT / "README.md").read_text()
    assert study.BLOCK.findall(text) == [expected]
    # The sentences beside the table, which would have to be written anew if they did not hold.
    recommended = study.by_estimator(measured)[study.RECOMMENDED]
    assert not any(map(study.too_much, recommended))
    assert sum(one["auc"] for one in recommended) > 0
    single = [one for one in study.single_flows() if one["budget"] == study.BUDGET]
    assert sum(map(study.too_much, single)) > len(single) / 2
    # What is not measured yet is left out, and a run that is over-confident is counted.
    study.figure([one for one in measured if one["problem"] == "slcp"], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    bad = [{**one, "inside": [0.8 * number for number in one["inside"]]} for one in recommended]
    assert study.short_table(bad)[0][2] == f"{len(bad)} of {len(bad)}"


def test_nothing_is_minus_zero():
    signed = GENERATED.script("unseen").signed
    assert (signed(-0.004), signed(-0.006), signed(0.004)) == ("+0.00", "-0.01", "+0.00")
