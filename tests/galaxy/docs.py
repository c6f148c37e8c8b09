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

PLUGIN_TYPES = {
    "modules": "module",
    **{
        name: name
        for name in (
            "become", "cache", "callback", "cliconf", "connection", "filter", "httpapi", "inventory",
            "lookup", "netconf", "shell", "strategy", "test", "vars",
        )
    },
}  # fmt: skip
"""Folder below plugins/ to the type that ansible-doc knows."""
UNDOCUMENTED = {"action", "doc_fragments", "module_utils", "plugin_utils"}
"""An action plugin is documented by its module, as ansible-test checks; the rest are no plugins."""
SEVERAL = {"filter", "test"}
"""A file of these types may define several plugins: ansible-doc says which."""


def check(core: Core, collection: Path) -> str:
    """Read every page; how many, or CheckFailed with everything that is missing."""
    wrong: list[str] = []
    counts: list[str] = []
    for kind, names in sorted(listed(core, collection).items()):
        pages = json.loads(_json(core, "-t", kind, *sorted(names)))
        for name in sorted(names):
            wrong += [f"{kind} {name}: {problem}" for problem in problems(kind, pages.get(name) or {})]
        counts.append(f"{len(names)} of type {kind}")
    wrong += [f"role {name}: {problem}" for name, problem in roles_without_example(collection)]
    if wrong:
        raise CheckFailed(
            f"ansible-doc of ansible-core {core.version}:\n" + "\n".join(f"  | {one}" for one in wrong)
        )
    return ", ".join(counts)


def listed(core: Core, collection: Path) -> dict[str, set[str]]:
    """Type to the full names of what the collection has of it."""
    kinds: dict[str, set[str]] = {}
    for folder in sorted(path for path in collection.glob("plugins/*") if path.is_dir()):
        if folder.name in UNDOCUMENTED:
            continue
        if folder.name not in PLUGIN_TYPES:
            raise CheckFailed(f"plugins/{folder.name} is no type of plugin that this check knows: add it")
        kind = PLUGIN_TYPES[folder.name]
        names = {f"{NAME}.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"}
        if kind in SEVERAL and names:
            names = set(json.loads(_json(core, "-t", kind, "--list", NAME)))
        if names:
            kinds[kind] = names
    if roles := {f"{NAME}.{path.name}" for path in collection.glob("roles/*") if path.is_dir()}:
        kinds["role"] = roles
    return kinds


def problems(kind: str, page: dict[str, Any]) -> Iterator[str]:
    """What a reader of this page would miss."""
    if not page:
        yield "ansible-doc has no page for it"
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


def roles_without_example(collection: Path) -> Iterator[tuple[str, str]]:
    """ansible-doc has no examples of roles in older ansible-core: each has one in a README, its own or the
    collection's."""
    for role in sorted(path for path in collection.glob("roles/*") if path.is_dir()):
        texts = [
            path.read_text("utf-8")
            for path in (collection / "README.md", role / "README.md")
            if path.exists()
        ]
        blocks = [block for text in texts for block in text.split("```")[1::2]]
        if not any(f"{NAME}.{role.name}" in block for block in blocks):
            yield (
                role.name,
                f"no example uses {NAME}.{role.name}, in README.md or in roles/{role.name}/README.md",
            )


def check_playbooks(core: Core, collection: Path) -> str:
    """`--syntax-check` of every playbook, by the name that a user gives."""
    playbooks = sorted(path.stem for path in collection.glob("playbooks/*.yml") if _is_playbook(path))
    for name in playbooks:
        core.expect("ansible-playbook", "--syntax-check", "-i", "localhost,", f"{NAME}.{name}")
    return ", ".join(playbooks) or "there is none"


def _is_playbook(path: Path) -> bool:
    """Task files, which are included, stand beside playbooks."""
    plays = yaml.safe_load(path.read_text("utf-8"))
    return isinstance(plays, list) and any("hosts" in play or "import_playbook" in play for play in plays)


def _json(core: Core, *options: str) -> str:
    """What ansible-doc prints as JSON; warnings before it are left out."""
    output = core.expect("ansible-doc", "--json", *options)
    return output[max(output.find("{"), 0) :]
