# nodegauge: Apache-2.0, see LICENSE
"""What is wrong with the variables of roles, for all hosts of a play at once and before one is touched."""

from __future__ import annotations

DOCUMENTATION = r"""
name: input_problems
short_description: What is wrong with the variables that roles of this collection were given
version_added: 0.1.0
description:
  - Names variables that begin as a role's own do and are none of them, values of a wrong type, and policies
    that the judge refuses. It looks at the play's variables and at those of every host, and touches no host.
  - Roles of this collection use it in their first task.
  - Names that belong to something else can be listed in the variable C(nodegauge_other_variables).
options:
  _terms:
    description: Names of roles of this collection.
    type: list
    elements: str
    required: true
  hosts:
    description: The hosts whose variables are checked.
    type: list
    elements: str
    default: []
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Check a role's variables before a play that takes hours
  ansible.builtin.assert:
    that: query('nodegauge.gpu.input_problems', 'validate', hosts=ansible_play_hosts_all) == []
  run_once: true
"""

RETURN = r"""
_raw:
  description: One sentence for each problem, with the hosts that it is about.
  type: list
  elements: str
  sample:
    - "gpu-7: validate_expected_gpus: -1 is too small; the least is 0."
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import archive as archives
from ansible_collections.nodegauge.gpu.plugins.plugin_utils import role_input
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.judging import CannotJudge, check_policy
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.role_input import Wrong

POLICY = "validate_policy"
ARCHIVE = "validate_archive"
KIND = "GPUValidationPolicy"


class LookupModule(LookupBase):
    """A sentence for each problem; none if the input is right."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[str]:
        self.set_options(var_options=variables, direct=kwargs)
        hosts = list(self.get_option("hosts"))
        hostvars = variables.get("hostvars") or {}
        scopes = {"": _Play(self, variables), **{host: hostvars[host] for host in hosts}}
        problems: dict[str, list[str]] = {scope: [] for scope in ("", *hosts)}
        self._judged: dict[str, str] = {}
        for role in terms:
            spec = role_input.specification(role)
            for scope, values in scopes.items():
                problems[scope] += self._of_scope(role, spec, values, variables)
        own = {sentence for host in hosts for sentence in problems[host]}
        problems[""] = [sentence for sentence in problems[""] if sentence not in own]
        return role_input.grouped(problems, len(hosts))

    def _of_scope(self, role: str, spec: dict[str, Any], values: Any, variables: Any) -> list[str]:
        others = _value(values, role_input.OTHERS) if role_input.OTHERS in values else []
        sentences = role_input.unknown(role, list(values), spec, others if isinstance(others, list) else ())
        given = {name: _value(values, name) for name in spec if name in values}
        sentences += role_input.mistyped(spec, given)
        if role == "validate":
            sentences += self._of_policy(given, variables)
        return sentences

    def _of_policy(self, given: Mapping[str, Any], variables: Any) -> Iterator[str]:
        """What is wrong with archive and policy: both are files of the controller."""
        option, policy = given.get(ARCHIVE), given.get(POLICY)
        archive = Path(option).expanduser() if isinstance(option, str) and option else archives.BUNDLED
        if not archive.is_file():
            if archive != archives.BUNDLED:
                yield f"{ARCHIVE}: {archive} is no file on the controller"
            return  # without the bundled one no module runs, and each says so
        try:
            if isinstance(policy, str) and policy:
                policy = self._file(policy, variables)
        except Wrong as error:
            yield f"{POLICY}: {error}"
            return
        if isinstance(policy, Mapping) and policy and (problem := self._judge(archive, policy)):
            yield f"{POLICY}: {problem}"

    def _file(self, name: str, variables: Any) -> Mapping[str, Any]:
        """The one policy of a file.  Raises `Wrong`."""
        path = self.find_file_in_search_path(variables, "files", name, ignore_missing=True)
        if path is None:
            raise Wrong(f"{name} is no file on the controller")
        try:
            documents = list(yaml.safe_load_all(Path(path).read_text("utf-8")))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise Wrong(f"{name} cannot be read: {' '.join(str(error).split())}") from None
        policies = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
        if len(policies) != 1:
            raise Wrong(
                f"{name} has {len(policies)} objects of the kind {KIND}. Keep one, or give another file."
            )
        return policies[0]

    def _judge(self, archive: Path, policy: Mapping[str, Any]) -> str:
        """What the judge refuses of a policy; each policy is asked about once, however many hosts have it."""
        key = json.dumps([str(archive), policy], sort_keys=True, default=str)
        if key not in self._judged:
            try:
                check_policy(archive, json.loads(key)[1])
                self._judged[key] = ""
            except CannotJudge as error:
                self._judged[key] = str(error).removeprefix("policy: ")
        return self._judged[key]


class _Play(Mapping[str, Any]):
    """The variables in the task's scope, as a host's are: a value is a template until it is asked for."""

    def __init__(self, lookup: LookupBase, variables: Mapping[str, Any]) -> None:
        self._templar, self._variables = lookup._templar, variables

    def __getitem__(self, name: str) -> Any:
        return self._templar.template(self._variables[name])

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def _value(values: Any, name: str) -> Any:
    """A variable's value, or why there is none."""
    try:
        value = values[name]
        return json.loads(json.dumps(value)) if isinstance(value, (Mapping, list, tuple)) else value
    except (AnsibleError, TypeError, ValueError) as error:
        return Wrong(f"it cannot be read: {' '.join(str(error).split())}")
