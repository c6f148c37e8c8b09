"""What is checked with an ansible-core on the installed collection, besides ansible-test.  The play shows
that modules work as installed, and that the first lines of the README do what they say."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from galaxy.build import NAME
from galaxy.commands import CheckFailed, Core, quoted
from support.playbook import COLLECTION
from testbed.hardware import Hardware, plug

PROFILE = "h100-sxm-8"
FAULT = "gpu-lost"
EXPECTED = {"whole": "pass", "broken": "fail"}
MEASURES = "Measure health"
"""The task of the role validate that measures."""
WANTED = {
    "verdicts": EXPECTED,
    "changed by measuring": [],
    "failed": ["broken"],
    "report": True,
    "exit code": 2,
}
HEREDOC = re.compile(r"<<'PLAY'\n(.+?)^PLAY$", re.DOTALL | re.MULTILINE)
UNDOCUMENTED = {"action", "doc_fragments", "module_utils", "plugin_utils"}
"""An action plugin is documented by its module, as ansible-test checks; the rest are no plugins."""


def check_docs(core: Core, collection: Path) -> str:
    output = core.expect("ansible-doc", "--metadata-dump", "--no-fail-on-errors", NAME)
    pages: dict[str, dict[str, Any]] = json.loads(output[max(output.find("{"), 0) :])["all"]
    del pages["keyword"]
    for folder in collection.glob("plugins/*"):
        if folder.name.removesuffix("s") not in pages and folder.name not in {*pages, *UNDOCUMENTED}:
            raise CheckFailed(f"plugins/{folder.name} is no type of plugin that ansible-doc knows")
    roles = sorted(path for path in collection.glob("roles/*") if path.is_dir())
    pages["role"] = {f"{NAME}.{path.name}": {} for path in roles} | pages["role"]
    wrong = [
        f"{kind} {name}: {problem}"
        for kind, named in sorted(pages.items())
        for name, page in sorted(named.items())
        for problem in problems(kind, page)
    ]
    if wrong:
        lines = "\n".join(f"  | {one}" for one in wrong)
        raise CheckFailed(f"ansible-doc of ansible-core {core.version}:\n{lines}")
    return ", ".join(f"{len(named)} of type {kind}" for kind, named in sorted(pages.items()) if named)


def problems(kind: str, page: dict[str, Any]) -> Iterator[str]:
    if not page or "error" in page:
        yield f"ansible-doc has no page for it{': ' * bool(page)}{page.get('error', '')}"
    elif kind == "role":
        for point, spec in page["entry_points"].items():
            yield from _undescribed(f"entry point {point}", spec)
    else:
        yield from _undescribed("it", page.get("doc") or {})
        if not (page.get("examples") or "").strip():
            yield "no examples"


def _undescribed(what: str, spec: dict[str, Any]) -> Iterator[str]:
    for key in ("short_description", "description"):
        if not spec.get(key):
            yield f"{what} has no {key}"
    for option, value in (spec.get("options") or {}).items():
        if not value.get("description"):
            yield f"option {option} has no description"


def check_playbooks(core: Core, collection: Path) -> str:
    """`--syntax-check` of every playbook, by the name that a user gives."""
    playbooks = sorted(path.stem for path in collection.glob("playbooks/*.yml") if _is_playbook(path))
    names = [f"{NAME}.{name}" for name in playbooks]
    if names:
        core.expect("ansible-playbook", "--syntax-check", "-i", "localhost,", *names)
    return ", ".join(playbooks) or "there is none"


def _is_playbook(path: Path) -> bool:
    """Task files, which are included, stand beside playbooks."""
    plays = yaml.safe_load(path.read_text("utf-8"))
    return isinstance(plays, list) and any("hosts" in play or "import_playbook" in play for play in plays)


def check_play(core: Core, machines: Path) -> str:
    hosts = {}
    for host in EXPECTED:
        hardware: Hardware = plug(PROFILE, machines / host)
        if host == "broken":
            hardware.fault(FAULT, gpu=2)
        hosts[host] = {"simulated": hardware.env(), "ansible_python_interpreter": sys.executable}
    readme = (COLLECTION / "README.md").read_text("utf-8")
    plays = [{**play, "environment": "{{ simulated }}"} for play in first_lines(readme)]
    shutil.rmtree(core.folder / "report", ignore_errors=True)
    played = core.play(plays, hosts)
    measured = [task for task in played.tasks if task.name.endswith(MEASURES)]
    seen = {
        "verdicts": {task.host: task.result.get("verdict") for task in measured},
        "changed by measuring": [task.host for task in measured if task in played.changed],
        "failed": sorted({task.host for task in played.tasks if task.status == "failed"}),
        "report": (core.folder / "report" / "report.html").exists(),
        "exit code": played.code,
    }
    if seen != WANTED:
        message = f"the plays with ansible-core {core.version} gave {seen} instead of {WANTED}"
        raise CheckFailed(f"{message}:\n{quoted(played.output)}")
    return ", ".join(f"{host}: {verdict}" for host, verdict in sorted(EXPECTED.items()))


def first_lines(readme: str) -> list[dict[str, Any]]:
    match = HEREDOC.search(readme)
    if not match:
        raise CheckFailed("ansible/README.md does not begin with a play between <<'PLAY' and PLAY")
    return list(yaml.safe_load(match[1]))
