"""The Dockerfiles match the archives, as far as a test without a container engine can tell."""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch

import pytest
from images.build import INPUTS, config
from images.spec import ALL, IMAGES, ROOT

FILES = {"operator": "operator/Dockerfile", "probe": "probes/Dockerfile", "nccl": "probes/Dockerfile.nccl"}
dockerfiles = pytest.mark.parametrize("name", sorted(ALL))


def instructions(name: str) -> list[tuple[str, str]]:
    text = (ROOT / FILES[name]).read_text("utf-8")
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    split = (line.partition(" ") for line in lines.replace("\\\n", " ").splitlines())
    return [(word, " ".join(rest.split())) for word, _, rest in split]


def final(name: str) -> dict[str, str]:
    lines = instructions(name)
    return dict(lines[max(i for i, (word, _) in enumerate(lines) if word == "FROM") :])


def ignored(path: str) -> bool:
    result = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            below = path == pattern or path.startswith(f"{pattern}/")
            if below or fnmatch(path, pattern.replace("**/", "*")):
                result = not line.startswith("!")
    return result


@dockerfiles
def test_every_input_of_the_build_is_copied(name: str) -> None:
    copies = [a.split() for word, a in instructions(name) if word == "COPY" and "--from" not in a]
    sources = {source for group in copies for source in group[:-1]}
    assert sources == set(INPUTS)
    assert [s for s in sources if not (ROOT / s).exists() or ignored(s)] == []
    # A folder's content lands in the target itself, so a copied folder must name itself as the target.
    assert all(group == [group[0], group[0]] for group in copies if (ROOT / group[0]).is_dir())


def test_the_context_contains_nothing_else() -> None:
    paths = (".git", "tests", ".venv", "charts", "docs", "dist", "operator/src/x/__pycache__")
    assert all(ignored(path) for path in paths)


@dockerfiles
def test_the_files_come_from_the_shared_builder(name: str) -> None:
    """The build stage, on a Debian whose Python the project supports, ends with this project's builder; the
    final stage contains only its output."""
    assert ("ARG", "DEBIAN=12") in instructions(name)
    assert ("FROM", "debian:${DEBIAN}-slim AS build") in instructions(name)
    runs = [a for word, a in instructions(name) if word == "RUN"]
    assert runs[-1].endswith(f"python -m images tree {name} /image")
    assert "--constraint constraints.txt pip" in runs[1]
    assert final(name)["FROM"] == "scratch"
    assert final(name)["COPY"] == "--from=build /image/ /"
    assert "RUN" not in final(name)


@dockerfiles
def test_a_container_starts_like_that_of_the_archive(name: str) -> None:
    stage, wanted = final(name), config(ALL[name])
    assert stage["USER"] == wanted["User"]
    assert stage["WORKDIR"] == wanted["WorkingDir"]
    assert re.findall(r'"([^"]*)"', stage["ENTRYPOINT"]) == wanted["Entrypoint"]
    assert shlex.split(stage["ENV"]) == wanted["Env"]
    assert dict(pair.split("=", 1) for pair in shlex.split(stage["LABEL"])) == wanted["Labels"]


def test_the_nccl_image_is_built_only_on_request() -> None:
    """`make images` builds two images, `make images NCCL=1` three; CI never sets NCCL."""
    assert set(ALL) - set(IMAGES) == {"nccl"}

    def command_of(*arguments: str) -> str:
        command = ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", "images", *arguments]
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "ARGS"))}
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return next(line for line in done.stdout.splitlines() if "-m images" in line)

    assert command_of().split()[-1] == "archives"
    assert command_of("NCCL=1").split()[-3:] == ["operator", "probe", "nccl"]
    assert "NCCL" not in (ROOT / ".ci/run").read_text("utf-8")
