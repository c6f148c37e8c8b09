#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: nodereport_info
short_description: Read the NodeReports of a cluster
version_added: 0.1.0
description:
  - Returns what the nodegauge operator says of each node, in short.
  - Changes nothing. Run it on the controller, with C(delegate_to=localhost) or in a play for localhost.
options:
  name:
    description: Read only this node.
    type: str
attributes:
  action_group:
    description: Use C(group/nodegauge.gpu.cluster) in C(module_defaults) to set defaults of these modules.
    support: full
    membership: [nodegauge.gpu.cluster]
  check_mode:
    description: Runs as usual, because it only reads.
    support: full
extends_documentation_fragment:
  - nodegauge.gpu.cluster
seealso:
  - plugin: nodegauge.gpu.nodereports
    plugin_type: inventory
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Read all nodes
  nodegauge.gpu.nodereport_info:
    kubeconfig: ~/.kube/config
  register: fleet

- name: Say which nodes must be repaired, and why
  ansible.builtin.debug:
    msg: "{{ item.name }}: {{ item.summary }}"
  loop: "{{ fleet.nodes | selectattr('verdict', 'eq', 'fail') }}"
  loop_control:
    label: "{{ item.name }}"

- name: Wait until a node has passed
  nodegauge.gpu.nodereport_info:
    name: gpu-7
  register: node
  until: node.nodes[0].verdict in ["pass", "warn"]
  retries: 30
  delay: 10
"""

RETURN = r"""
nodes:
  description: The nodes, by name. Nodes without a NodeReport have C(reported=false).
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Name of the node.
      type: str
      sample: gpu-7
    reported:
      description: Whether the operator has a report of the node.
      type: bool
    verdict:
      description: V(pass), V(warn), V(fail) or V(unknown); empty without a report.
      type: str
      sample: fail
    summary:
      description: The verdict in a sentence.
      type: str
    causes:
      description: Causes of the taints for faults that the node has now.
      type: list
      elements: str
      sample: [thermal]
    taints:
      description: All taints of nodegauge on the node.
      type: list
      elements: dict
    unschedulable:
      description: Whether the node is cordoned.
      type: bool
    interconnect:
      description: V(nvlink), V(nvlink-pairs) or V(pcie); empty if it is not known.
      type: str
    interconnect_evidence:
      description: V(reported) by the driver, or V(measured) by NCCL.
      type: str
    nvlink_gbps:
      description: NVLink rate of the weakest GPU, one way, in GB/s.
      type: int
    busbw_allreduce_gbps:
      description: Bus bandwidth of all_reduce at 1 GiB as last measured, in GB/s.
      type: int
    model:
      description: Product name of the GPUs.
      type: str
      sample: NVIDIA H100 80GB HBM3
    gpu_count:
      description: GPUs that the driver reports.
      type: int
      sample: 8
    driver:
      description: Driver version.
      type: str
    psu:
      description: V(ok), V(redundancy-lost) or V(fault); empty if it is not known.
      type: str
    findings:
      description: What the last runs found. Each has probe, code, severity, subject and message.
      type: list
      elements: dict
    policy:
      description: Name of the GPUValidationPolicy that applies.
      type: str
    read_at:
      description: Time of the last readable health run.
      type: str
    age_seconds:
      description: Seconds since then; none without one.
      type: int
    labels:
      description: Labels of the node.
      type: dict
    addresses:
      description: Addresses of the node by type, such as InternalIP.
      type: dict
counts:
  description: How many nodes have each verdict.
  returned: success
  type: dict
  sample: {"pass": 12, "fail": 1}
without_node:
  description: Names of reports whose node is gone. Empty with O(label_selector).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.nodegauge.gpu.plugins.module_utils import nodereports


def main():
    module = AnsibleModule(argument_spec=nodereports.ARGUMENTS, supports_check_mode=True)
    if not nodereports.HAS_KUBERNETES:
        module.fail_json(
            msg=missing_required_lib("kubernetes"), exception=nodereports.KUBERNETES_IMPORT_ERROR
        )
    try:
        client = nodereports.connect(module.params)
        nodes, without_node = nodereports.read(
            client, name=module.params["name"], label_selector=module.params["label_selector"]
        )
    except nodereports.ClusterError as error:
        module.fail_json(msg=str(error))
    counts: dict[str, int] = {}
    for node in nodes:
        verdict = node["verdict"] or "unreported"
        counts[verdict] = counts.get(verdict, 0) + 1
    module.exit_json(changed=False, nodes=nodes, counts=counts, without_node=without_node)


if __name__ == "__main__":
    main()
