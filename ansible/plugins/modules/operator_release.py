#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: operator_release
short_description: Install, upgrade or remove the operator's Helm release
version_added: 0.1.0
description:
  - Renders the chart against the cluster, and upgrades the release only if objects, hooks or values differ
    from what the release has. The role P(nodegauge.gpu.operator#role) uses it.
  - Waits until the operator is ready. If it does not become ready, the task fails and says what its pods wait
    for.
  - Sees what Helm knows. It does not look for changes that were made past Helm, such as by C(kubectl edit).
options:
  name:
    description: Name of the release.
    type: str
    default: nodegauge
  namespace:
    description: Namespace of the release. It is created if it is missing; it is never removed.
    type: str
    default: nodegauge
  state:
    description:
      - V(present) installs or upgrades the release.
      - V(absent) removes it. The chart's clean-up first removes labels, taints, conditions, reports and probe
        pods.
    type: str
    choices: [present, absent]
    default: present
  chart:
    description: Folder or archive of the chart, its C(oci://) address, or its name in O(chart_repository).
    type: str
  chart_repository:
    description: Address of a chart repository.
    type: str
  chart_version:
    description: Version of a chart that comes from a repository or a registry.
    type: str
  values:
    description:
      - All values that differ from the chart's defaults. Values of earlier runs are not kept.
      - They are part of the result of C(--diff). The chart has no value for a password.
    type: dict
    default: {}
  kubeconfig:
    description: Path of the kubeconfig. Without it, Helm looks in E(KUBECONFIG) and C(~/.kube/config).
    type: path
  context:
    description: Context of the kubeconfig.
    type: str
  helm:
    description: Name or path of the program.
    type: path
    default: helm
  timeout:
    description: Seconds that each of Helm's waits may take, for pods and for the chart's Jobs.
    type: int
    default: 300
attributes:
  action_group:
    description: Use C(group/nodegauge.gpu.cluster) in C(module_defaults) to set defaults of these modules.
    support: full
    membership: [nodegauge.gpu.cluster]
  check_mode:
    description: Renders the chart against the cluster and changes nothing.
    support: full
  diff_mode:
    description: Shows values and objects before and after. The data of Secrets is hidden.
    support: full
requirements:
  - Helm 3.14 or newer, or Helm 4, on the host that runs the task.
notes:
  - On the first install a Job creates the policy, because its CRD is new. The task then upgrades the release
    once, so that the policy belongs to it and the next run changes nothing.
seealso:
  - module: kubernetes.core.helm
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Install the chart of the repository
  nodegauge.gpu.operator_release:
    chart: charts/nodegauge
    values:
      image:
        registry: registry.example.com
  delegate_to: localhost
  run_once: true

- name: Remove the operator
  nodegauge.gpu.operator_release:
    state: absent
"""

RETURN = r"""
release:
  description: The release as Helm has it; empty if there is none.
  returned: success
  type: dict
  contains:
    revision:
      description: Number of the revision.
      type: int
    status:
      description: Helm's status of it.
      type: str
    description:
      description: What Helm says about it.
      type: str
  sample:
    revision: 2
    status: deployed
    description: Upgrade complete
"""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

ARGUMENTS = {
    "name": {"type": "str", "default": "nodegauge"},
    "namespace": {"type": "str", "default": "nodegauge"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "chart": {"type": "str"},
    "chart_repository": {"type": "str"},
    "chart_version": {"type": "str"},
    "values": {"type": "dict", "default": {}},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "helm": {"type": "path", "default": "helm"},
    "timeout": {"type": "int", "default": 300},
}
SECRET = re.compile(r"^kind:\s*[\"']?Secret\b", re.MULTILINE)
SECRET_DATA = re.compile(r"^(data|stringData):.*(\n([ \t].*)?$)*", re.MULTILINE)
WAYS_OUT = (
    (
        re.compile(r"cluster unreachable|connection refused|no such host|i/o timeout|no configuration"),
        "Check the kubeconfig and its context: `helm list` must work on the host that runs this task.",
    ),
    (
        re.compile(r"forbidden|unauthorized", re.IGNORECASE),
        "The account of the kubeconfig needs cluster-admin, because the chart has CRDs and ClusterRoles.",
    ),
    (
        re.compile(r"conflict with \""),
        "Somebody changed this field past Helm. Put the wanted value into the values, then run "
        "`helm upgrade --force-conflicts` once.",
    ),
    (
        re.compile(r"no matches for kind"),
        "Somebody deleted the CRDs, and Helm reads the release's objects before it writes any: run "
        "`kubectl apply --server-side -f crds/` in nodegauge's repository, then run this again.",
    ),
    (
        re.compile(r"don't meet the specifications|image\.registry"),
        "Correct the values; the chart's values.yaml describes each.",
    ),
)
"""What Helm prints, and what to do about it."""


class HelmFailed(Exception):
    """Helm's own error, without its log lines."""


class Release:
    """One release as Helm shows it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.wanted = module.params
        # `get_bin_path` takes a name, or an absolute path to a program.
        self.program = module.get_bin_path(self.wanted["helm"]) or module.fail_json(
            msg=f"The program {self.wanted['helm']} was not found on the host that runs this task. Install "
            "Helm 3.14 or newer there, or set the option helm to its path."
        )

    def helm(self, *arguments: str) -> str:
        """What the command prints; HelmFailed with its error."""
        where = ["--namespace", self.wanted["namespace"]]
        for option, key in (("--kubeconfig", "kubeconfig"), ("--kube-context", "context")):
            where += [option, self.wanted[key]] if self.wanted[key] else []
        code, out, err = self.module.run_command([self.program, *arguments, *where])
        if code:
            text = (err or out).strip()
            raise HelmFailed(text[text.find("Error:") :] if "Error:" in text else text)
        return str(out)

    def read(self) -> dict[str, Any]:
        """The latest revision; empty if there is no release."""
        try:
            release: dict[str, Any] = json.loads(self.helm("status", self.wanted["name"], "--output", "json"))
        except HelmFailed as error:
            if "release: not found" in str(error):
                return {}
            raise
        return release if release["info"]["status"] != "uninstalled" else {}

    def upgrade(self, *options: str) -> dict[str, Any]:
        """Install or upgrade, or only render with `--dry-run`; the release."""
        command = ["upgrade", "--install", self.wanted["name"], self.wanted["chart"], "--create-namespace"]
        for option, key in (("--repo", "chart_repository"), ("--version", "chart_version")):
            command += [option, self.wanted[key]] if self.wanted[key] else []
        values = Path(self.module.tmpdir) / "values.json"  # a private folder, removed with the module
        values.write_text(json.dumps(self.wanted["values"]), encoding="utf-8")
        command += ["--reset-values", "--values", str(values), "--output", "json", "--timeout", self.timeout]
        release: dict[str, Any] = json.loads(self.helm(*command, *options))
        return release

    @property
    def timeout(self) -> str:
        return f"{self.wanted['timeout']}s"

    def rendered(self) -> dict[str, Any]:
        """What an upgrade would make of the release."""
        return self.upgrade("--dry-run=server")

    def apply(self) -> None:
        """Upgrade and wait; once more where the first install made objects that the release can own now."""
        if not same(self.upgrade("--wait"), self.rendered()):
            self.upgrade("--wait")

    def remove(self) -> None:
        """Uninstall it with the chart's hooks."""
        self.helm("uninstall", self.wanted["name"], "--wait", "--timeout", self.timeout)


def same(release: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether objects, hooks and values are equal."""
    return identity(release) == identity(other)


def identity(release: dict[str, Any]) -> tuple[Any, ...]:
    """All that makes a revision differ from another."""
    hooks = sorted((hook["kind"], hook["name"], hook["manifest"]) for hook in release.get("hooks") or [])
    return (release.get("manifest") or "").strip(), hooks, release.get("config") or {}


def shown(release: dict[str, Any]) -> str:
    """Values and objects for people, without what Secrets hold."""
    if not release:
        return ""
    objects = (release.get("manifest") or "").split("\n---\n")
    objects += [
        hook["manifest"] for hook in sorted(release.get("hooks") or [], key=lambda hook: hook["path"])
    ]
    values = json.dumps(release.get("config") or {}, indent=2, sort_keys=True)
    return f"# values\n{values}\n" + "".join(
        f"---\n{without_secrets(document).strip()}\n" for document in objects
    )


def without_secrets(manifest: str) -> str:
    """The object; the data of a Secret is replaced."""
    return SECRET_DATA.sub(r"\1: (hidden)", manifest) if SECRET.search(manifest) else manifest


def waiting(release: dict[str, Any]) -> list[str]:
    """What the release's pods wait for, one sentence for each reason."""
    lists = (release.get("info", {}).get("resources") or {}).get("v1/Pod(related)") or []
    reasons = []
    for pod in (item for pod_list in lists for item in pod_list.get("items") or []):
        status, name = pod.get("status", {}), pod["metadata"]["name"]
        for condition in status.get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                reasons.append(f"pod {name} is not scheduled: {condition.get('message', '')}")
        for container in (status.get("initContainerStatuses") or []) + (
            status.get("containerStatuses") or []
        ):
            state = container.get("state", {})
            stopped = state.get("waiting") or state.get("terminated") or {}
            if stopped:
                details = [stopped.get("reason", ""), stopped.get("message", "")]
                reasons.append(
                    f"pod {name}, container {container['name']}: {': '.join(filter(None, details))}"
                )
    return reasons


def explained(release: Release, error: HelmFailed) -> str:
    """Helm's error, what the pods wait for, and what to do."""
    text = str(error)
    parts = [f"Helm failed for the release {release.wanted['name']}: {text}"]
    with contextlib.suppress(HelmFailed):  # the error at hand already says what is wrong
        parts += waiting(release.read())
    parts += [advice for pattern, advice in WAYS_OUT if pattern.search(text)]
    if "hook" in text or "BackoffLimitExceeded" in text or "Job" in text:
        parts.append(
            "Read the log of the chart's Job, then run this task again: "
            f"`kubectl logs --namespace {release.wanted['namespace']} job/NAME`"
        )
    return "\n".join(parts)


def fail_pending(release: Release, status: str) -> None:
    """Another Helm works on the release, or was killed while it did."""
    name, namespace = release.wanted["name"], release.wanted["namespace"]
    release.module.fail_json(
        msg=f"The release {name} is {status}: another Helm works on it, or one was killed. Wait for it. "
        f"If none runs, `helm rollback {name} --namespace {namespace}` ends it "
        "(`helm uninstall` after a first install)."
    )


def ensure(release: Release) -> dict[str, Any]:
    """Bring the release to the wanted state; the module's result."""
    module = release.module
    before = release.read()
    status = before.get("info", {}).get("status", "")
    if status.startswith("pending-"):
        fail_pending(release, status)
    absent = release.wanted["state"] == "absent"
    after = {} if absent else release.rendered()
    changed = bool(before) if absent else status != "deployed" or not same(before, after)
    result: dict[str, Any] = {"changed": changed}
    if module._diff:
        result["diff"] = {"before": shown(before), "after": shown(after)}
    if changed and not module.check_mode:
        release.remove() if absent else release.apply()
        before = release.read()
    facts = before.get("info", {})
    result["release"] = before and {
        "revision": before["version"],
        "status": facts["status"],
        "description": facts.get("description", ""),
    }
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS, required_if=[("state", "present", ["chart"])], supports_check_mode=True
    )
    release = Release(module)
    try:
        result = ensure(release)
    except HelmFailed as error:
        module.fail_json(msg=explained(release, error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
