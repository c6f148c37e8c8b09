"""The registration taint and node labels in a file for `kubeadm join --config` or `kubeadm init --config`.

Source: kubeadm.k8s.io/v1beta3 and v1beta4, NodeRegistrationOptions. Text in, text out; must not read or write
files.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_config import (
    KEY,
    as_flag,
    is_closing,
    is_ours,
)
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_flags import closed, labelled
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.yaml_edit import edited, loaded

KINDS = ("JoinConfiguration", "InitConfiguration")
AS_LIST = {"kubeadm.k8s.io/v1beta3": False, "kubeadm.k8s.io/v1beta4": True}
"""Whether kubeletExtraArgs is a list of names and values, by apiVersion; before, it is a mapping."""
OURS = {"key": KEY, "effect": "NoSchedule"}
CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
"""What kubeadm sets where a control plane's `taints` are not given; a list replaces it."""


def kubeadm_config_gate(
    text: str, state: str = "present", labels: Mapping[str, Any] | None = None, name: str = "the file"
) -> str:
    """The file with or without our taint and these node labels; other documents, fields and comments stay.

    `name`: the file, for errors.  Raises AnsibleFilterError if it has no JoinConfiguration or
    InitConfiguration of a known version, or cannot be edited without touching anything else.
    """
    documents = loaded(text, name)
    wanted = copy.deepcopy(documents)
    ours = [each for each in wanted if isinstance(each, dict) and each.get("kind") in KINDS]
    if not ours:
        raise AnsibleFilterError(
            f"{name} has no {' or '.join(KINDS)}. Name the file of `kubeadm join --config`."
        )
    strings = {str(key): str(value) for key, value in (labels or {}).items()}
    for document in ours:
        if document.get("apiVersion") not in AS_LIST:
            known = " or ".join(AS_LIST)
            raise AnsibleFilterError(
                f"{name}: {document['kind']} is of {document.get('apiVersion')}, and not of {known}."
                " Convert it: kubeadm config migrate"
            )
        _change(document, present=state == "present", labels=strings, name=name)
    return edited(text, wanted, name)


def _change(document: dict[str, Any], *, present: bool, labels: Mapping[str, str], name: str) -> None:
    """Bring one document to what it should say."""
    registration = document.get("nodeRegistration") or {}
    arguments, taints = registration.get("kubeletExtraArgs"), registration.get("taints")
    as_list = AS_LIST[document["apiVersion"]]
    shape = list if as_list else dict
    items = [*(taints or []), *((arguments or []) if as_list else [])]
    well = isinstance(arguments or shape(), shape) and isinstance(taints or [], list)
    if not well or not all(isinstance(each, dict) for each in items):
        raise AnsibleFilterError(
            f"{name}: taints or kubeletExtraArgs of the {document['kind']} are not as"
            f" {document['apiVersion']} has them. Correct them first."
        )
    flags = _Flags(arguments, as_list)
    if (flag := flags.get("register-with-taints")) is not None:  # overrides `taints`
        items = [item for item in flag.split(",") if item]
        changed = closed(items) if present else [item for item in items if not is_ours(item)]
        if changed != items:
            flags.set("register-with-taints", ",".join(changed))
    elif (new := _taints(document, taints, present=present)) != taints:
        registration["taints"] = new
    items = [item for item in (flags.get("node-labels") or "").split(",") if item]
    known = {item.partition("=")[0]: item.partition("=")[2] for item in items}
    if present:
        changed = labelled(items, labels, known=known)
    else:
        changed = [item for item in items if item not in {f"{key}={value}" for key, value in labels.items()}]
    if changed != items:
        flags.set("node-labels", ",".join(changed))
    if flags.arguments != (arguments or shape()):
        registration["kubeletExtraArgs"] = flags.arguments
    if registration:
        document["nodeRegistration"] = registration


def _taints(document: Mapping[str, Any], taints: list[Any] | None, *, present: bool) -> list[Any] | None:
    """The list that `taints` should be; None stays where nothing is needed."""
    if not present:
        return taints and [taint for taint in taints if not is_ours(as_flag(taint))]
    if any(is_closing(as_flag(taint)) for taint in taints or []):
        return taints
    ours = [taint for taint in taints or [] if is_ours(as_flag(taint))]
    if ours and taints is not None:  # with another effect, which keeps no pod off
        return [{**taint, "effect": "NoSchedule"} if taint == ours[0] else taint for taint in taints]
    controls = document["kind"] == "InitConfiguration" or document.get("controlPlane") is not None
    return [OURS, *(([CONTROL_PLANE] if controls else []) if taints is None else taints)]


class _Flags:
    """kubeletExtraArgs, in either shape."""

    def __init__(self, arguments: Any, as_list: bool) -> None:
        self.arguments: Any = copy.deepcopy(arguments) or ([] if as_list else {})

    def get(self, name: str) -> str | None:
        """The last value, which is the one that counts."""
        if isinstance(self.arguments, dict):
            value = self.arguments.get(name)
        else:
            value = next(
                (each.get("value") for each in reversed(self.arguments) if each.get("name") == name), None
            )
        return None if value is None else str(value)

    def set(self, name: str, value: str) -> None:
        if isinstance(self.arguments, dict):
            self.arguments[name] = value
        elif self.get(name) is None:
            self.arguments.insert(0, {"name": name, "value": value})
        else:
            next(each for each in reversed(self.arguments) if each.get("name") == name)["value"] = value
