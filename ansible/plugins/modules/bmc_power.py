#!/usr/bin/python
# nodegauge: Apache-2.0, see LICENSE

from __future__ import annotations

DOCUMENTATION = r"""
module: bmc_power
short_description: Read the BMC of a server and judge its power and cooling
version_added: 0.1.0
description:
  - Reads power supplies, voltages, fans, inlet air, leak detectors and the GPUs that the BMC sees, over
    Redfish or IPMI. Changes nothing.
  - The controller judges what was read, with the judge of the nodegauge operator.
  - The task reads from where it runs. Delegate it to the controller, or run it on the host if the BMC is
    reached from there alone (Redfish host interface).
  - The task does not fail because of a verdict. It fails if the BMC cannot be read.
options:
  url:
    description:
      - Address of the BMC, as C(https://HOST[:PORT]) for Redfish or C(ipmi://HOST[:PORT]) for IPMI over LAN.
      - C(auto://HOST) asks Redfish first, and IPMI only where there is no Redfish.
    type: str
    required: true
  username:
    description: A read-only user of the BMC is enough.
    type: str
    default: ""
  password:
    description: The user's password. It stands in no command line and in no file.
    type: str
    default: ""
  ca:
    description: Path of the CA certificate that signed the BMC's certificate, where the task runs.
    type: path
  ca_content:
    description: The same as text (PEM).
    type: str
  fingerprint:
    description: SHA-256 of a self-signed certificate, in hex.
    type: str
  insecure:
    description: Whether to accept any certificate, and C(http://).
    type: bool
    default: false
  timeout:
    description: Seconds that the whole reading may take.
    type: int
    default: 60
  needed:
    description: Supplies that carry the machine under full load, if you know. A DGX H100 needs 4 of 6.
    type: int
  policy:
    description: A GPUValidationPolicy, or its C(spec). Its thresholds apply.
    type: dict
  archive:
    description: Path of another archive than the collection's, on the controller.
    type: path
attributes:
  check_mode:
    description: Runs as usual, because reading changes nothing.
    support: full
requirements:
  - Python 3.11 or newer with aiohttp and cryptography, where the task runs
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
- name: Read the BMC from the controller
  nodegauge.gpu.bmc_power:
    url: "https://{{ inventory_hostname }}-bmc.example.com"
    username: reader
    password: "{{ bmc_password }}"
    ca: /etc/ssl/bmc-ca.pem
  delegate_to: localhost
  register: bmc

- name: Say what is wrong
  ansible.builtin.debug:
    msg: "{{ item.message }} {{ item.steps | join(' ') }}"
  loop: "{{ bmc.findings }}"
  loop_control:
    label: "{{ item.code }}"

- name: A server without Redfish
  nodegauge.gpu.bmc_power:
    url: "ipmi://{{ inventory_hostname }}-bmc.example.com"
    username: reader
    password: "{{ bmc_password }}"
  delegate_to: localhost
"""

RETURN = r"""
reading:
  description: What the BMC said, as nodegauge's C(ChassisReading).
  returned: success
  type: dict
verdict:
  description: V(pass), V(warn), V(fail), or V(unknown) if nothing could be judged.
  returned: success
  type: str
  sample: warn
summary:
  description: The verdict in one line.
  returned: success
  type: str
  sample: "SYS-821GE-TNHR: 5 of 6 supplies work, 2161 W now; no power supply to spare [redundancy-lost]."
findings:
  description: What is wrong, the worst first, each with code, severity, subject, message, evidence and steps.
  returned: success
  type: list
  elements: dict
psu:
  description: V(ok), V(redundancy-lost) or V(fault); none if no supply could be read.
  returned: success
  type: str
power:
  description: Whether the machine is V(on) or V(off); V(unknown) if the BMC does not say.
  returned: success
  type: str
coverage:
  description: What was read of each kind of part.
  returned: success
  type: str
  sample: 6 of 6 supplies, 35 of 36 fans, 17 of 17 rails, 4 of 4 inlets
watts:
  description: Watts now, at full load of the GPUs, and from the working supplies; none if not known.
  returned: success
  type: dict
  sample: {"now": 2161, "peak": 6997, "capacity": 18000}
page:
  description: What the page of the role C(report) shows of it, as JSON text. It may change with any version.
  returned: success
  type: str
judge_version:
  description: Version of the judge.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.nodegauge.gpu.plugins.module_utils import bmc


def main():
    module = AnsibleModule(
        argument_spec=bmc.ARGUMENTS, supports_check_mode=True, mutually_exclusive=[["ca", "ca_content"]]
    )
    try:
        answer = bmc.read(module.params)
    except bmc.NotRead as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, reading=answer["reading"])


if __name__ == "__main__":
    main()
