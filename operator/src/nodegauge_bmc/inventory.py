"""Which BMC belongs to which node, and how to log in: files in a folder, as a Secret is mounted.

One file per node, named as the node (`.yaml`, `.yml` and `.json` do not count), with the fields of `Entry`.
The file `_defaults` has fields for all nodes; a `url` in it with `{node}` or `{short}` is a pattern, and then
a node needs no file of its own.  A wrong file costs its node alone.  No error repeats what a file contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from nodegauge_bmc.connection import Access, BmcError
from nodegauge_bmc.protocols import checked

DEFAULTS = "_defaults"
ENDINGS = (".yaml", ".yml", ".json")
CERTIFICATES = (".pem", ".crt", ".cer")
"""Files with these endings are CA bundles, which an entry names in its field `ca`."""
MAX_FILE = 65_536
"""Bytes of one entry, which needs a few hundred."""
NODE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
WAY_OUT = {
    "url": "write https://HOST, or ipmi://HOST for a BMC without Redfish",
    "username": "write the BMC's user as a text in quotes",
    "password": "write the password as a text in quotes",
    "ca": "write the name of a file of the same Secret that ends in .pem or .crt",
    "fingerprint": "write the SHA-256 of the BMC's certificate as a text in quotes",
    "insecure": "write true or false",
}
"""Each field, and what belongs into it."""
OPTIONS = {
    "--user and --password-file": "username and password",
    "--fingerprint": "fingerprint",
    "--insecure": "insecure: true",
    "--ca": "ca",
}
"""Options of `nodegauge bmc` that errors about a BMC name, and what they are in an entry."""
CHART = {"--deadline": "bmc.deadline and bmc.timeout in the chart's values"}
"""The same for the chart."""


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file.  `None`: not given, so that the defaults count."""

    url: str | None = None
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    fingerprint: str | None = None
    insecure: bool | None = None

    def __repr__(self) -> str:
        return f"Entry(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        """What rich prints of it."""
        return [("url", self.url)]


class WrongEntry(Exception):
    """A file, or an entry after its defaults, that cannot be used: file, field and the way out."""


class Target(Struct, frozen=True, kw_only=True):
    """One BMC to read, for one node.  `node_uid` is that of the Node object."""

    node: str
    node_uid: str
    access: Access

    @property
    def address(self) -> str:
        """Scheme, host and port."""
        return self.access.url


class Plan(Struct, frozen=True, kw_only=True):
    """What follows from files and nodes: whom to read, why others are not, and files without a node."""

    targets: dict[str, Target] = {}
    problems: dict[str, str] = {}
    """By node."""
    unused: list[str] = []
    """What is wrong with the inventory, and belongs to no node."""


class Inventory:
    """The files of a folder, each parsed once for each of its versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[str, tuple[tuple[int, ...], Entry | WrongEntry]] = {}

    def changed(self) -> bool:
        """Read the files that are new or changed; whether there was any.  Raises `OSError`."""
        before, current = self._parsed, {}
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith(".") or not path.is_file():
                continue  # a mounted Secret has folders `..data` and `..2026_...`
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            known = before.get(path.name)
            if known and known[0] == version:
                current[path.name] = known
            else:
                current[path.name] = (version, Entry() if path.suffix in CERTIFICATES else _entry(path))
        self._parsed = current
        return {name: version for name, (version, _) in before.items()} != {
            name: version for name, (version, _) in current.items()
        }

    @property
    def empty(self) -> bool:
        """Whether there is no file for a node and no defaults."""
        return all(name.endswith(CERTIFICATES) for name in self._parsed)

    @property
    def nodes(self) -> list[str]:
        """Nodes that a file is named after."""
        names = (name for name in self._parsed if not name.endswith(CERTIFICATES))
        return sorted({node for name in names if (node := _node(name)) != DEFAULTS})

    @property
    def pattern(self) -> bool:
        """Whether the defaults give nodes without a file an address."""
        listed = [self._parsed[name][1] for name in (DEFAULTS, f"{DEFAULTS}.yaml") if name in self._parsed]
        return any(isinstance(entry, Entry) and _is_pattern(entry.url or "") for entry in listed)

    def file_of(self, node: str) -> Path:
        """The node's file, which a pattern's node does not have yet."""
        return self._folder / next((name for name in self._parsed if _node(name) == node), node)

    def plan(self, nodes: Mapping[str, str], *, selected: frozenset[str], timeout: float) -> Plan:
        """Who is to be read: `nodes` are names to UIDs, `selected` those that a pattern may add.

        `timeout`: seconds for one request to a BMC.
        """
        files = {n: e for n, (_, e) in self._parsed.items() if not n.endswith(CERTIFICATES)}
        unused: list[str] = []
        problems: dict[str, str] = {}
        defaults = files.pop(DEFAULTS, None) or files.pop(f"{DEFAULTS}.yaml", None) or Entry()
        if isinstance(defaults, WrongEntry):
            unused.append(str(defaults))
            problems = dict.fromkeys([*{_node(n) for n in files} & nodes.keys(), *selected], str(defaults))
            return Plan(problems=problems, unused=unused)
        wanted: dict[str, Entry | WrongEntry] = {}
        for name, entry in files.items():
            node = _node(name)
            if node in wanted:
                entry = WrongEntry(f"{name}: there is another file for the node {node}; remove one of them")
            wanted[node] = entry
            if node not in nodes:
                unused.append(f"{name}: there is no node {node[:253]!r}; name the file as the node")
        if _is_pattern(defaults.url or ""):
            wanted = {**dict.fromkeys(selected, Entry()), **wanted}
        targets = {}
        for node in sorted(wanted.keys() & nodes.keys()):
            try:
                access = self._access(node, wanted[node], defaults, timeout=timeout)
                targets[node] = Target(node=node, node_uid=nodes[node], access=access)
            except WrongEntry as error:
                problems[node] = str(error)
        _refuse_shared(targets, problems)
        return Plan(targets=targets, problems=problems, unused=unused)

    def _access(self, node: str, entry: Entry | WrongEntry, defaults: Entry, *, timeout: float) -> Access:
        """How to reach the node's BMC.  Raises `WrongEntry`."""
        if isinstance(entry, WrongEntry):
            raise entry
        url = (entry.url or defaults.url or "").replace("{node}", node)
        url = url.replace("{short}", node.partition(".")[0])
        own_trust = entry.ca is not None or entry.fingerprint is not None or entry.insecure is not None
        # The defaults' trust is for TLS, which IPMI does not have.
        trust = entry if own_trust or url.lower().startswith("ipmi://") else defaults
        user = entry.username if entry.username is not None else defaults.username
        password = entry.password if entry.password is not None else defaults.password
        if not url:
            raise WrongEntry(f"{node}: url: missing; {WAY_OUT['url']}")
        if bool(user) != bool(password):
            field = "password" if user else "username"
            raise WrongEntry(f"{node}: {field}: missing; {WAY_OUT[field]}, or leave out both")
        access = Access(
            url=url,
            user=user or "",
            password=password or "",
            ca=self._certificates(node, trust.ca or ""),
            fingerprint=trust.fingerprint or "",
            insecure=bool(trust.insecure),
            timeout=timeout,
        )
        try:
            return checked(access)
        except BmcError as error:
            raise WrongEntry(f"{node}: url: {in_fields(str(error))}") from None

    def _certificates(self, node: str, name: str) -> str:
        if not name:
            return ""
        path = self._folder / name
        if "/" in name or path.suffix not in CERTIFICATES or not path.is_file():
            raise WrongEntry(f"{node}: ca: no such file; {WAY_OUT['ca']}")
        return str(path)


def in_fields(problem: str, **others: str) -> str:
    """The message of a `BmcError` with an entry's fields for the command's options."""
    for option, field in (OPTIONS | others).items():
        problem = problem.replace(option, field)
    return problem


def _refuse_shared(targets: dict[str, Target], problems: dict[str, str]) -> None:
    """Two nodes with one address: one of them would be judged by the other's machine, so neither is read."""
    by_address: dict[str, list[str]] = {}
    for node, target in targets.items():
        by_address.setdefault(target.address.lower().partition("://")[2], []).append(node)
    for address, sharing in by_address.items():
        if len(sharing) > 1:
            others = ", ".join(sharing[:4]) + (" ..." if len(sharing) > 4 else "")
            for node in sharing:
                del targets[node]
                problems[node] = (
                    f"{node}: url: {address} is given to several nodes ({others}); {WAY_OUT['url']}"
                )


def _is_pattern(url: str) -> bool:
    return "{node}" in url or "{short}" in url


def _node(file: str) -> str:
    """The node that a file is about."""
    for ending in ENDINGS:
        file = file.removesuffix(ending)
    return file


def _entry(path: Path) -> Entry | WrongEntry:
    """What is in the file, or what is wrong with it."""
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_FILE + 1)
    except OSError as error:
        return WrongEntry(f"{path.name}: not readable ({type(error).__name__}); look at the Secret's mount")
    if len(data) > MAX_FILE:
        return WrongEntry(f"{path.name}: more than {MAX_FILE} bytes; write one node's entry into each file")
    stem = _node(path.name)
    if stem != DEFAULTS and not NODE.fullmatch(stem):
        return WrongEntry(f"{path.name}: no name of a node; name the file as its node")
    try:
        return msgspec.convert(yaml.load(data, Loader=_LOADER), Entry)
    except yaml.MarkedYAMLError as error:  # its text has lines of the file
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return WrongEntry(
            f"{path.name}: no YAML from line {line} on; write one field per line, as url: https://HOST"
        )
    except msgspec.ValidationError as error:
        return WrongEntry(f"{path.name}: {_wrong_field(str(error))}")
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        return WrongEntry(f"{path.name}: no YAML; write one field per line, as url: https://HOST")


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _wrong_field(error: str) -> str:
    """Field and way out; a value is never repeated."""
    named = re.search(r"\$\.(\w+)`$", error)
    if named and named[1] in WAY_OUT:
        return f"{named[1]}: of the wrong type; {WAY_OUT[named[1]]}"
    if unknown := re.search(r"unknown field `([A-Za-z_]{1,40})`", error):
        return f"{unknown[1]}: no such field; the fields are {', '.join(WAY_OUT)}"
    return f"no fields; write one field per line: {', '.join(WAY_OUT)}"
