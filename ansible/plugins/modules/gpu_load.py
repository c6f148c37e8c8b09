#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_load
short_description: Run the GPUs of an idle host at full power and judge them
version_added: 0.1.0
description:
  - Runs nodegauge's load probe on the host. It keeps all GPUs busy with matrix products for half a minute,
    checks their results, and watches clocks, heat, power and links.
  - GPUs that are in use are left alone. The verdict is then V(skipped), with the reason in RV(summary).
  - The controller judges what was seen, with the judge of the nodegauge operator.
  - The task does not fail because of a verdict. It fails if the host cannot be measured.
options:
  seconds:
    description: Seconds of load.
    type: float
    default: 30
  hz:
    description: Samples per second, at least 2.
    type: float
    default: 4
  stop_below:
    description: End the load this many °C below the temperature at which the GPU slows down.
    type: int
    default: 3
  timeout:
    description:
      - Seconds after which the probe is ended. It ends itself 10 s earlier (a third
        earlier if O(timeout) is less than 30) and returns what it measured until then.
      - V(0) is 130 s more than O(seconds).
    type: int
    default: 0
attributes:
  check_mode:
    description: Does nothing, because the probe puts load on the GPUs. The task is skipped and says so.
    support: none
extends_documentation_fragment:
  - nodegauge.gpu.probe
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Load all GPUs for two minutes
  nodegauge.gpu.gpu_load:
    seconds: 120
  register: load

- name: Show what was found
  ansible.builtin.debug:
    msg: "{{ load.summary }}"

- name: End the load earlier than usual on a host with poor cooling
  nodegauge.gpu.gpu_load:
    stop_below: 10
"""

RETURN = r"""
document:
  description: What the probe read, as it printed it. Keep it to judge the next one with O(before).
  returned: when the probe returned one
  type: dict
verdict:
  description:
    - V(pass), V(warn) or V(fail); V(unknown) if nothing could be judged.
    - V(skipped) if GPUs are in use, if the host has a single GPU, and in check mode.
    - V(no-load) if the load was too light to judge.
  returned: when there is a document, and if the probe was skipped
  type: str
  sample: pass
summary:
  description: The verdict in one line.
  returned: always, unless the task failed before it measured
  type: str
  sample: "8x NVIDIA H100 80GB HBM3: healthy under load."
findings:
  description: What is wrong, the worst first. Empty on a healthy host.
  returned: when there is a document
  type: list
  elements: dict
  contains:
    code:
      description: The finding's name; the page of findings in the documentation explains each.
      type: str
      sample: load-wrong-result
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
tflops:
  description: What the slowest GPU computed, in TFLOPS.
  returned: when it was measured
  type: float
reason:
  description: Why nothing was judged, as one word.
  returned: when nothing was judged
  type: str
  sample: Busy
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
      description: Null; M(nodegauge.gpu.gpu_health) returns it.
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
    module = AnsibleModule(argument_spec=probe.ARGUMENTS["load"], supports_check_mode=False)
    params = module.params
    options = ["--seconds", str(params["seconds"]), "--hz", str(params["hz"])]
    options += ["--stop-below", str(params["stop_below"])]
    probe.main(module, "load", options, timeout=int(params["seconds"]) + 130)


if __name__ == "__main__":
    main()
