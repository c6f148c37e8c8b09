"""The Dockerfiles, as far as they can be checked without a container engine: what they copy is there."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

import pytest

from chart_tools import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
dockerfiles = pytest.mark.parametrize("which", ["operator", "probes"])


def instructions(which: str) -> list[tuple[str, str]]:
    """Instruction and arguments of a Dockerfile, comments left out, continued lines joined."""
    text = (ROOT / which / "Dockerfile").read_text("utf-8")
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    split = (line.partition(" ") for line in lines.replace("\\\n", " ").splitlines())
    return [(word, " ".join(rest.split())) for word, _, rest in split]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps the path out: the last line that matches decides."""
    found = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            if (
                path == pattern
                or path.startswith(f"{pattern}/")
                or fnmatch(path, pattern.replace("**/", "*"))
            ):
                found = not line.startswith("!")
    return found


@dockerfiles
def test_copied_files_are_in_the_context(which: str) -> None:
    """Everything copied from the repository exists there, and .dockerignore lets it through."""
    copies = [a.split()[:-1] for word, a in instructions(which) if word == "COPY" and "--from" not in a]
    sources = [source for group in copies for source in group]
    assert {"pyproject.toml", "constraints.txt", "operator/src", "probes/src"} <= set(sources)
    assert [s for s in sources if not (ROOT / s).exists() or ignored(s)] == []


def test_context_holds_nothing_else() -> None:
    """Tests, version control and environments stay out of the build."""
    assert all(
        ignored(path) for path in (".git", "tests", ".venv", "charts", "docs", "operator/src/x/__pycache__")
    )


@dockerfiles
def test_images_run_without_root(which: str) -> None:
    """The final stage sets the user that the chart asks for, and leaves the command to the pods."""
    words = instructions(which)
    assert words[-1] == ("USER", "65532:65532")
    assert not {"ENTRYPOINT", "CMD"} & {word for word, _ in words}


@dockerfiles
def test_images_install_the_right_extra_with_pins(which: str) -> None:
    """Each image installs its own extra, with the versions of constraints.txt, and carries no installer."""
    runs = [a for word, a in instructions(which) if word == "RUN"]
    assert which in EXTRAS
    assert re.search(rf'pip install .*--constraint constraints\.txt "\.\[{which}\]"', runs[0])
    assert all("pip uninstall --yes pip" in run for run in runs)


@dockerfiles
def test_bases_have_a_version(which: str) -> None:
    """Base images name a version of Python that the project supports, the same in both stages."""
    words = instructions(which)
    bases = {a.split()[0] for word, a in words if word == "FROM"}
    assert bases == {"python:${PYTHON}-slim"}
    assert ("ARG", "PYTHON=3.12") in words
