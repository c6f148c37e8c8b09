"""The collection's pages as a site, by antsibull-docs and Sphinx.  Other projects' indexes are not
fetched."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from galaxy.build import NAME
from galaxy.commands import CheckFailed, NotRun, run
from galaxy.environments import Wanted, environment
from support.playbook import ROOT, stage
from testbed.binaries import cache_folder

DOCS = Wanted("docs", ("3.12", "3.11", "3.13"))
SECONDS = 1800.0
TARGET = ROOT / "dist" / "collection-docs"
OTHER_PROJECTS = "'sphinx.ext.intersphinx', "


def build(folder: Path, cache: Path) -> Path:
    tools = environment(DOCS, cache)
    collection = stage(folder)
    env = {
        **{name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ},
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(folder),
        "ANSIBLE_HOME": str(folder / ".ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(folder),
        "LC_ALL": "C.UTF-8",
    }
    docs, site = tools / "antsibull-docs", folder / "site"
    lint = [docs, "lint-collection-docs", "--plugin-docs", collection]
    run(lint, cwd=folder, env=env, seconds=SECONDS).expect("antsibull-docs lint-collection-docs")
    site.mkdir(mode=0o700)
    begin = [docs, "sphinx-init", "--use-current", "--lenient", "--dest-dir", site, NAME]
    run(begin, cwd=folder, env=env, seconds=SECONDS).expect("antsibull-docs sphinx-init")
    settings = site / "conf.py"
    settings.write_text(settings.read_text("utf-8").replace(OTHER_PROJECTS, ""), encoding="utf-8")
    run(["bash", site / "build.sh"], cwd=site, env=env, seconds=SECONDS).expect("the site's build.sh")
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(site / "build" / "html", TARGET)
    return TARGET / "index.html"


def main() -> int:
    cache = cache_folder(os.environ) / "collection"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodegauge-site-") as made:
        try:
            print(build(Path(made), cache))
        except (CheckFailed, NotRun) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
