#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_nccl
short_description: Measure the bandwidth between the GPUs of an idle host with NCCL
version_added: 0.1.0
description:
  - Runs nodegauge's NCCL probe on the host. It measures collectives on all GPUs, which takes a minute or two
    and puts load on them.
  - GPUs that are in use are left alone. The verdict is then V(skipped), with the reason in RV(summary).
  - The controller judges the bandwidth, with the judge of the nodegauge operator.
  - The task does not fail because of a verdict. It fails if the host cannot be measured.
options:
  engine:
    description:
      - What measures. V(nccl4py) needs an archive that contains NCCL, see O(archive).
      - V(nccl-tests) runs NVIDIA's programs, which must be on the host.
    type: str
    choices: [nccl4py, nccl-tests]
    default: nccl4py
  nccl_tests:
    description: The folder of C(all_reduce_perf) on the host, for O(engine=nccl-tests). By default, PATH.
    type: path
  nccl_variables:
    description: Variables of NCCL for all measurements, such as C(NCCL_ALGO). Each begins with C(NCCL_).
    type: dict
    default: {}
  budget:
    description: Seconds for all measurements together. What does not fit is left out.
    type: float
    default: 60
  timeout:
    description:
      - Seconds after which the probe is ended. It ends itself 10 s earlier (a third
        earlier if O(timeout) is less than 30) and returns what it measured until then.
    type: int
    default: 820
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
- name: Measure with the programs of nccl-tests on the host
  nodegauge.gpu.gpu_nccl:
    engine: nccl-tests
    nccl_tests: /opt/nccl-tests/build
  register: nccl

- name: Show the bandwidth
  ansible.builtin.debug:
    var: nccl.busbw
  when: nccl.verdict != "skipped"

- name: Measure with an archive that contains NCCL
  nodegauge.gpu.gpu_nccl:
    archive: /srv/nodegauge/nodegauge-host-nccl.pyz
    expected_gpus: 8
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
  returned: when there is a document, and if the probe was skipped
  type: str
  sample: pass
summary:
  description: The verdict in one line.
  returned: always, unless the task failed before it measured
  type: str
  sample: "2x TITAN RTX: collectives reach their expected bandwidth; all_reduce 40 GB/s."
findings:
  description: What is wrong, the worst first. Empty on a healthy host.
  returned: when there is a document
  type: list
  elements: dict
  contains:
    code:
      description: The finding's name; the page of findings in the documentation explains each.
      type: str
      sample: nccl-slow
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
busbw:
  description: The bus bandwidth in GB/s at the largest size, by collective.
  returned: when it was measured
  type: dict
  sample: {"all_reduce": 40.0}
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

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.nodegauge.gpu.plugins.module_utils import probe


def main():
    module = AnsibleModule(argument_spec=probe.ARGUMENTS["nccl"], supports_check_mode=False)
    params = module.params
    options = ["--engine", params["engine"], "--budget", str(params["budget"])]
    options += ["--environment", json.dumps(params["nccl_variables"])]
    probe.main(module, "nccl", options)


if __name__ == "__main__":
    main()
