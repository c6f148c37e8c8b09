"""`make check` names what an incomplete change of each kind in CONTRIBUTING.md lacks, and where to add it.

All changes are made at once, in a copy of the checkout, which the real check looks at once.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DONE = yaml.safe_load(Path(__file__).with_name("incomplete.yaml").read_text(encoding="utf-8"))
"""By kind: what is done, and what the check must say."""


def test_what_an_incomplete_change_lacks_is_named(tmp_path: Path) -> None:
    """Every missing thing of every kind, with its file and the way out, and nothing else, in one run."""
    own = (Path(__file__).name, "incomplete.yaml")
    skipped = shutil.ignore_patterns(".?*", "__pycache__", "fixtures", *own, "dist", "build")
    checkout = shutil.copytree(ROOT, tmp_path / "checkout", ignore=skipped)
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    for kind in DONE.values():
        for change in kind["done"]:
            path, before = checkout / change["file"], change.get("before", "")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            at = text.index(before) if before else len(text)
            path.write_text(text[:at] + change["new"] + text[at:], encoding="utf-8")
    paths = [str(checkout / folder) for folder in ("operator/src", "probes/src", "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, ".ci/complete.py"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    wanted = [(start, out) for kind in DONE.values() for start, out in kind["lacks"]]
    unsaid = [w for w in wanted if not any(line.startswith(w[0]) and w[1] in line for line in lines)]
    assert unsaid == [], "\n".join(lines)
    others = [line for line in lines if not re.search(r"half|make reference$", line, re.IGNORECASE)]
    assert others == []


def test_every_kind_of_change_has_its_incomplete_one() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(" kinds of change\n")[2]
    assert re.findall(r"^\| (an? [^|]+?) \|", section, re.MULTILINE) == [*DONE]
