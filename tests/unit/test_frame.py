"""What holds the repository together: rules about tracked files, each of which was broken somewhere."""

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

SENTENCE = 4
"""Words, `test` among them, that are none yet."""
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = {"nodegauge_contract", "nodegauge_probes", "nodegauge_judge", "nodegauge_operator", "nodegauge_cli"}
BASE = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
# GKE's nodes have their driver below the home of `kubernetes`: a fact that the documentation names.
MACHINE_PATHS = ["/ro" + "ot/", "/Use" + "rs/", r"/home/(?!kubernetes/)\w", r"\.\./sha" + "red/"]
REGISTRY_HOSTS = ["py" + "pi.org", "python" + "hosted", "proxy.go" + "lang.org", "registry.np" + "mjs"]


NOT_INSTALLED = {"nccl": ["nccl4py"], "cuda": ["cuda-core"]}
"""Who provides modules that no checkout installs: those of the extra `nccl`."""


@cache
def tracked() -> tuple[Path, ...]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources(*folders: str) -> list[Path]:
    wanted = tuple(f"{folder}/" for folder in folders)
    return [path for path in tracked() if path.suffix == ".py" and name_of(path).startswith(wanted)]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def none(faults: Iterable[str]) -> None:
    listed = list(faults)
    assert not listed, "\n".join(listed)


def test_no_file_names_this_machine_or_is_left_in_a_conflict() -> None:
    refused = [*MACHINE_PATHS, *map(re.escape, [*REGISTRY_HOSTS, f"{ROOT}/"]), r"(?m:^(<{7}|>{7}) )"]
    pattern = re.compile("|".join(refused))
    none(
        f"{name_of(path)}: {match.group()}"
        for path in tracked()
        if (match := pattern.search(path.read_text(encoding="utf-8", errors="replace")))
    )


@pytest.mark.parametrize("folder", ["operator", "probes", "tests", "tests/operator", "tests/probes"])
def test_no_folder_is_made_a_package_that_shadows(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_source_files_hold_one_idea() -> None:
    lengths = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in source_packages()}
    assert lengths
    none(f"{name} has {lines} lines: split it by its ideas" for name, lines in lengths.items() if lines > 500)


def source_packages() -> list[Path]:
    return sources("operator/src", "probes/src")


def test_every_module_says_why_it_exists() -> None:
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in source_packages()}
    none(f"{name} has none" for name, text in texts.items() if text and not text.startswith('"""'))


def test_every_test_says_what_it_shows() -> None:
    silent = []
    for path in sources("tests"):
        if not path.name.startswith("test_"):
            continue
        nodes = list(ast.walk(parsed(path)))
        if not any(isinstance(node, ast.Assert) for node in nodes):
            silent.append(f"{name_of(path)} asserts nothing")
        tests = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        silent += [
            f"{name_of(path)}:{test.lineno} {test.name} has neither a sentence for a name nor a docstring"
            for test in tests
            if test.name.startswith("test_") and not ast.get_docstring(test)
            if len(test.name.split("_")) <= SENTENCE
        ]
    none(silent)


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower().replace("_", "-")


@pytest.mark.parametrize(
    ("package", "requirements"),
    [
        ("nodegauge_contract", BASE),
        ("nodegauge_judge", BASE),
        ("nodegauge_probes", BASE + EXTRAS["probes"] + EXTRAS["nccl"]),
        ("nodegauge_operator", BASE + EXTRAS["operator"]),
        ("nodegauge_cli", BASE + EXTRAS["operator"] + EXTRAS["cli"]),
    ],
)
def test_a_package_imports_only_what_its_extra_installs(package: str, requirements: list[str]) -> None:
    declared = {distribution(requirement) for requirement in requirements}
    providers = NOT_INSTALLED | importlib.metadata.packages_distributions()
    modules = set().union(*(imported(p) for p in source_packages() if f"/{package}/" in p.as_posix()))
    foreign = modules - OURS - set(sys.stdlib_module_names)
    assert modules, f"{package} has no code"
    none(
        f"{package} imports {module}: add it to the dependencies or the extra in pyproject.toml"
        for module in sorted(foreign)
        if not declared & {distribution(provider) for provider in providers.get(module, [module])}
    )


def test_pure_packages_do_not_ask_for_the_time() -> None:
    pure = ("nodegauge_operator/core/", "nodegauge_judge/", "nodegauge_contract/")
    none(
        f"{name_of(path)}:{number} {line.strip()}"
        for path in source_packages()
        if any(part in path.as_posix() for part in pure)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\.(now|today|utcnow)\(", line)
    )


def test_handlers_use_nothing_of_kopf_that_writes_or_scans() -> None:
    allowed = {"event", "startup", "cleanup", "login", "probe"}
    used = set()
    for path in sources("operator/src/nodegauge_operator"):
        text = path.read_text(encoding="utf-8")
        used |= {*re.findall(r"kopf\.on\.(\w+)", text), *re.findall(r"kopf\.(index|timer|daemon)\b", text)}
    assert "event" in used
    assert used <= allowed


def test_every_dependency_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    none(pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", pin))
    direct = [*BASE, *itertools.chain(*EXTRAS.values()), *PROJECT["dependency-groups"]["dev"]]
    wanted = {distribution(requirement) for requirement in direct} - {"nodegauge"}
    none(wanted - {distribution(pin) for pin in pins})


def anchors(page: Path) -> set[str]:
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text("utf-8"))
    headings = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [path for path in tracked() if path.suffix == ".md"]
    links = [(page, to) for page in pages for to in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))]
    local = [(page, *link.partition("#")[::2]) for page, link in links if not re.match(r"[a-z]+:", link)]
    assert local
    none(f"{name_of(page)}: {path}" for page, path, _ in local if not (page.parent / path).exists())
    to_headings = [(page, page.parent / to if to else page, anchor) for page, to, anchor in local if anchor]
    none(f"{name_of(page)}: #{anchor}" for page, to, anchor in to_headings if anchor not in anchors(to))


def test_every_decision_has_its_sections_and_is_listed() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1)), "a number is missing"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for section in ("Context", "Decision", "Alternatives", "Consequences"):
            assert f"\n## {section}\n" in text, f"{page.name} has no section {section}"
        assert re.search(r"\n20\d\d-\d\d-\d\d, ", text), f"{page.name} has no date"
        assert text.count("\n") <= 50, f"{page.name} is longer than a screen"
        assert f"(adr/{page.name})" in index, f"{page.name} is not listed"


TESTS = Path(__file__).parents[1]
FIXTURES = TESTS / "fixtures"
INDEX = FIXTURES / "INDEX.md"


def rows() -> dict[str, list[str]]:
    """The cells of every row of the index by the file's name."""
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0]: row for row in cells[2:]}


def test_every_fixture_is_indexed_and_used() -> None:
    """No file without a row, no row without a file, and none that no test or profile names."""
    files = {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.rglob("*") if path.is_file()}
    index = rows()
    assert files - {INDEX.name} == index.keys()
    assert [name for name, row in index.items() if len(row) != 4 or not all(row)] == []
    users = [path for end in ("py", "yaml") for path in TESTS.rglob(f"*.{end}")]
    texts = "\n".join(path.read_text() for path in users if FIXTURES not in path.parents)
    texts += (FIXTURES / "careful-reader.yaml").read_text()
    assert [name for name in index if name.rpartition("/")[2].partition(".")[0] not in texts] == []
