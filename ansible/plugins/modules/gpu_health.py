#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health
short_description: Read the GPUs of a host and judge them
version_added: 0.1.0
description:
  - Runs nodegauge's health probe on the host. It reads the NVIDIA driver, the PCI bus and the sensors for a
    few seconds, and uses no GPU.
  - The controller judges what it read, with the judge of the nodegauge operator.
  - The task does not fail because of a verdict. It fails if the host cannot be measured.
options:
  window:
    description: Seconds of sampling. A longer window finds slowdown that comes and goes.
    type: float
    default: 3
  hz:
    description: Samples per second.
    type: float
    default: 4
  timeout:
    description:
      - Seconds after which the probe is ended. It ends itself 10 s earlier (a third
        earlier if O(timeout) is less than 30) and returns what it read until then.
    type: int
    default: 55
attributes:
  check_mode:
    description: Runs as usual, because measuring changes nothing.
    support: full
extends_documentation_fragment:
  - nodegauge.gpu.probe
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Measure a host
  nodegauge.gpu.gpu_health:
  register: gpu

- name: Stop here if something is wrong
  ansible.builtin.assert:
    that: gpu.verdict in ["pass", "warn"]
    fail_msg: "{{ gpu.summary }}"

- name: Use what was read
  ansible.builtin.set_fact:
    gpu_count: "{{ gpu.facts.gpu_count }}"

- name: Judge as a policy of the cluster does, for a host that should have eight GPUs
  nodegauge.gpu.gpu_health:
    policy: "{{ lookup('ansible.builtin.file', 'policy.yaml') | from_yaml }}"
    expected_gpus: 8

- name: Compare with an earlier result, to see counters that grew
  nodegauge.gpu.gpu_health:
    before: "{{ lookup('ansible.builtin.file', inventory_hostname ~ '.json') | from_json }}"
"""

RETURN = r"""
document:
  description: What the probe read, as it printed it. Keep it to judge the next one with O(before).
  returned: when the probe returned one
  type: dict
verdict:
  description:
    - V(pass), V(warn) or V(fail); V(unknown) if nothing could be judged.
  returned: when there is a document, and if the probe was skipped
  type: str
  sample: pass
summary:
  description: The verdict in one line.
  returned: always, unless the task failed before it measured
  type: str
  sample: "8x NVIDIA H100 80GB HBM3: healthy; NVSwitch joins all GPUs, 450 GB/s per GPU one way."
findings:
  description: What is wrong, the worst first. Empty on a healthy host.
  returned: when there is a document
  type: list
  elements: dict
  contains:
    code:
      description: The finding's name; the page of findings in the documentation explains each.
      type: str
      sample: p2p-refused
    severity:
      description: V(fail), V(warn) or V(info).
      type: str
      sample: fail
    subject:
      description: Where it is; V(node) for the host as a whole.
      type: str
      sample: GPU 0 (0000:08:00.0)
    message:
      description: The measurement, its limit, and the next step.
      type: str
    steps:
      description: What to do, one step after the other.
      type: list
      elements: str
    evidence:
      description: The numbers behind it, with units in their names.
      type: dict
    gpus:
      description: The GPUs concerned, with index, UUID, serial number and PCI address.
      type: list
      elements: dict
interconnect:
  description: How the GPUs are joined.
  returned: when there is a document
  type: dict
  contains:
    class:
      description: V(nvlink), V(nvlink-pairs) or V(pcie); null if unknown.
      type: str
      sample: nvlink
    nvlinkGbps:
      description: The GB/s of a GPU's NVLinks, one way.
      type: float
      sample: 450
    evidence:
      description: V(reported) by the driver, or V(measured) with NCCL.
      type: str
    reason:
      description: The reason, as one word.
      type: str
      sample: NvlinkRing
    message:
      description: The reason, as a sentence.
      type: str
matrix:
  description: The matrix that C(nvidia-smi topo -m) prints.
  returned: when it was read
  type: str
read:
  description: What was read of what should have been, in one line; with gaps, each by GPU and subject.
  returned: when there is a document
  type: str
  sample: 8 of 8 GPUs, 9 of 9 subjects
labels:
  description: The labels that the operator would set on this node, were this its first result.
  returned: when there are some
  type: dict
facts:
  description: What the host has, for M(ansible.builtin.set_fact).
  returned: when there is a document
  type: dict
  contains:
    driver:
      description: The driver's version.
      type: str
      sample: 550.54.15
    cuda:
      description: The newest CUDA that the driver supports.
      type: str
      sample: "12.4"
    gpu_count:
      description: How many GPUs the probe saw.
      type: int
      sample: 8
    gpus_expected:
      description:
        - How many GPUs the host must have, by O(policy), O(expected_gpus) or the whole boards of its model.
        - Null where none of them says.
      type: int
      sample: 8
    models:
      description: The names of the GPUs, each once.
      type: list
      elements: str
      sample: ["NVIDIA H100 80GB HBM3"]
    gpus:
      description: Each GPU's index, name, UUID, serial number and PCI address.
      type: list
      elements: dict
    interconnect:
      description: V(nvlink), V(nvlink-pairs) or V(pcie); null if M(nodegauge.gpu.gpu_health) could not tell.
      type: str
      sample: nvlink
    nvlink_gbps:
      description: The GB/s of a GPU's NVLinks, one way.
      type: float
      sample: 450
page:
  description: What the page of the role C(report) shows of it, as JSON text. It may change with any version.
  returned: when there is a document
  type: str
judge_version:
  description: The version of nodegauge whose judge gave the verdict.
  returned: when there is a document
  type: str
  sample: 0.1.0
python:
  description: The Python that ran the probe on the host. It need not be the one of other tasks.
  returned: when the host has one that fits
  type: dict
  contains:
    path:
      description: Its path on the host.
      type: str
      sample: /usr/bin/python3.11
    version:
      description: Its version.
      type: str
      sample: 3.11.2
probe_version:
  description: The version of nodegauge whose probe ran on the host.
  returned: when there is a document
  type: str
  sample: 0.1.0
steps:
  description: What to do so that the host can be measured. It is also in the message.
  returned: when the host could not be measured
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.nodegauge.gpu.plugins.module_utils import probe


def main():
    module = AnsibleModule(argument_spec=probe.ARGUMENTS["health"], supports_check_mode=True)
    params = module.params
    probe.main(module, "health", ["--window", str(params["window"]), "--hz", str(params["hz"])])


if __name__ == "__main__":
    main()
