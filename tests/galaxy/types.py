"""mypy on a staged copy of the collection's plugins, which import each other as `ansible_collections...`."""

import os
import sys
import tempfile
from pathlib import Path

from galaxy.build import NAME
from galaxy.commands import run
from support.playbook import ROOT, stage

SECONDS = 1800.0


def check() -> int:
    with tempfile.TemporaryDirectory(prefix="nodegauge-types-") as folder:
        stage(Path(folder))
        package = f"ansible_collections.{NAME}.plugins"
        options = (f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}")
        command = [sys.executable, "-m", "mypy", *options, "--package", package]
        done = run(command, cwd=Path(folder), env=os.environ, seconds=SECONDS)
    print(done.stdout.replace(f"{package.rpartition('.')[0].replace('.', '/')}/", "ansible/"), end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(check())
