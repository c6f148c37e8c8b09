"""`ansible-doc` of everything in the collection, found by walking it, so that nothing new is forgotten.

Must not know any plugin by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from galaxy.build import NAME
from galaxy.commands import CheckFailed, Core

UNDOCUMENTED = {"action", "doc_fragments", "module_utils", "plugin_utils"}
"""An action plugin is documented by its module, as ansible-test checks; the rest are no plugins."""


def check(core: Core, collection: Path) -> str:
    """Read every page; how many, or CheckFailed with everything that is missing."""
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
    wrong += [
        f"role {path.name}: {problem}" for path in roles for problem in without_example(collection, path)
    ]
    if wrong:
        lines = "\n".join(f"  | {one}" for one in wrong)
        raise CheckFailed(f"ansible-doc of ansible-core {core.version}:\n{lines}")
    return ", ".join(f"{len(named)} of type {kind}" for kind, named in sorted(pages.items()) if named)


def problems(kind: str, page: dict[str, Any]) -> Iterator[str]:
    """What a reader of this page would miss."""
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


def without_example(collection: Path, role: Path) -> Iterator[str]:
    """ansible-doc has no examples of roles in older ansible-core: each has one in a README, its own or the
    collection's."""
    readmes = [path for path in (collection / "README.md", role / "README.md") if path.exists()]
    blocks = [block for path in readmes for block in path.read_text("utf-8").split("```")[1::2]]
    if not any(f"{NAME}.{role.name}" in block for block in blocks):
        yield f"no example uses {NAME}.{role.name}, in README.md or in roles/{role.name}/README.md"


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
