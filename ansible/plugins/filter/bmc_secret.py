# nodegauge: Apache-2.0, see LICENSE
"""The Secret that the operator's BMC reader mounts: one file for each node, from an inventory's variables.

Must not show what an entry contains: errors name the host and the variable alone.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

PREFIX = "bmc_inventory_"
DEFAULTS = "_defaults"
NODE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
URL = re.compile(r"(https|http|ipmi|auto)://[^\s/@]+/?")
FINGERPRINT = re.compile(r"([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}")
CERTIFICATE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*\.(pem|crt|cer)")
FIELDS = ("url", "username", "password", "ca", "fingerprint", "insecure")


def secret(
    hostvars: Mapping[str, Mapping[str, Any]],
    hosts: Iterable[str],
    *,
    name: str,
    namespace: str,
    existing: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    certificates: Mapping[str, str] | None = None,
    prune: bool = False,
) -> dict[str, Any]:
    """The Secret's manifest.  Files of `existing` that these hosts do not name stay, unless `prune`."""
    certificates = dict(certificates or {})
    files: dict[str, str] = {}
    for certificate, text in certificates.items():
        if not CERTIFICATE.fullmatch(certificate) or "BEGIN CERTIFICATE" not in str(text):
            raise AnsibleFilterError(
                f"{PREFIX}certificates: {certificate}: give a name that ends in .pem, and the text"
            )
        files[certificate] = str(text)
    known = {*certificates, *(() if prune else (existing or {}).get("data") or {})}
    if defaults:
        wrong = sorted(set(defaults) - set(FIELDS))
        if wrong:
            raise AnsibleFilterError(f"{PREFIX}defaults: {wrong[0]}: use one of {', '.join(FIELDS)}")
        files[DEFAULTS] = _file(f"{PREFIX}defaults", dict(defaults), known, pattern=True)
    for host in hosts:
        values = {field: hostvars[host].get(PREFIX + field) for field in FIELDS}
        entry = {field: value for field, value in values.items() if value not in (None, "")}
        if not entry:
            continue
        node = str(hostvars[host].get(PREFIX + "node") or host)
        if not NODE.fullmatch(node) or len(node) > 253:
            raise AnsibleFilterError(f"{host}: {node} is no name of a node; set {PREFIX}node")
        if "url" not in entry and "url" not in (defaults or {}):
            raise AnsibleFilterError(f"{host}: {PREFIX}url is missing; write https://HOST or ipmi://HOST")
        if node in files:
            raise AnsibleFilterError(f"{host}: another host is the node {node} too; set {PREFIX}node")
        files[node] = _file(host, entry, known, pattern=False)
    kept = {} if prune else dict((existing or {}).get("data") or {})
    data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace},
        "data": dict(sorted({**kept, **data}.items())),
    }


def changes(wanted: Mapping[str, Any], existing: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Names of files that are added, changed and removed."""
    before, after = (existing or {}).get("data") or {}, wanted["data"]
    return {
        "added": sorted(set(after) - set(before)),
        "changed": sorted(key for key in set(after) & set(before) if after[key] != before[key]),
        "removed": sorted(set(before) - set(after)),
    }


def _file(whose: str, entry: dict[str, Any], known: set[str], *, pattern: bool) -> str:
    """The text of one entry, which YAML reads too.  AnsibleFilterError for what the reader would refuse."""
    checks: dict[str, tuple[Callable[[str], object], str]] = {
        "url": (lambda v: URL.fullmatch(v.format(node="n", short="n") if pattern else v), "https://HOST"),
        "username": (bool, "the user as text"),
        "password": (bool, "the password as text"),
        "ca": (lambda v: v in known, "a name of bmc_inventory_certificates"),
        "fingerprint": (FINGERPRINT.fullmatch, "the certificate's SHA-256, in hex"),
    }
    for field, (check, way_out) in checks.items():
        if field not in entry:
            continue
        value = entry[field]
        try:
            right = isinstance(value, str) and bool(check(value))
        except (ValueError, KeyError, IndexError):
            right = False
        if not right:
            raise AnsibleFilterError(f"{whose}: {PREFIX}{field} cannot be used; give {way_out}")
        entry[field] = str(value)
    if "insecure" in entry and not isinstance(entry["insecure"], bool):
        raise AnsibleFilterError(f"{whose}: {PREFIX}insecure is neither true nor false")
    if ("username" in entry) != ("password" in entry) and not pattern and "url" in entry:
        missing = "password" if "username" in entry else "username"
        raise AnsibleFilterError(
            f"{whose}: {PREFIX}{missing} is missing; a BMC needs both, or the defaults' both"
        )
    return json.dumps(entry, sort_keys=True) + "\n"


class FilterModule:
    """The filters of the role bmc_inventory."""

    def filters(self) -> dict[str, Any]:
        """Names to functions."""
        return {"bmc_secret": secret, "bmc_secret_changes": changes}
