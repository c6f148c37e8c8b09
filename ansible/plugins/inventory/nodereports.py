# nodegauge: Apache-2.0, see LICENSE
"""Hosts and groups from the NodeReports of a cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
name: nodereports
short_description: Hosts and groups from the NodeReports of a cluster
version_added: 0.1.0
description:
  - Each node with a NodeReport is a host. Groups follow from what the nodegauge operator says of it.
  - The group C(nodegauge_repair) holds every node with verdict V(fail) or a taint for a fault.
  - The file of the inventory must end in C(nodereports.yml) or C(nodereports.yaml).
options:
  plugin:
    description: The name of this plugin.
    required: true
    choices: [nodegauge.gpu.nodereports, nodereports]
  address:
    description:
      - Type of the node's address that becomes C(ansible_host), such as V(InternalIP).
      - By default the host is reached by the node's name.
    type: str
  rack_label:
    description: Label that names a node's rack. Nodes with it are in a group C(nodegauge_rack_NAME).
    type: str
    default: topology.kubernetes.io/rack
  unreported:
    description: Whether nodes without a NodeReport are hosts too, in the group C(nodegauge_unreported).
    type: bool
    default: false
extends_documentation_fragment:
  - nodegauge.gpu.cluster
  - constructed
  - inventory_cache
author:
  - nodegauge contributors (@nodegauge)
"""

EXAMPLES = r"""
# fleet.nodereports.yml
plugin: nodegauge.gpu.nodereports
kubeconfig: ~/.kube/config
address: InternalIP

# nodes that are read too rarely, and a group for each driver
groups:
  nodegauge_old: nodegauge_age_seconds | default(0, true) > 7200
keyed_groups:
  - key: nodegauge_driver
    prefix: driver
compose:
  ansible_user: "'root'"

# ansible-inventory -i fleet.nodereports.yml --graph
# ansible-playbook -i fleet.nodereports.yml nodegauge.gpu.repair
"""

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.nodegauge.gpu.plugins.module_utils import nodereports

REPAIR = "nodegauge_repair"
UNREPORTED = "nodegauge_unreported"
ORDER = ("repair", "unreported", "verdict", "cause", "interconnect", "model", "rack")
"""Kinds of groups, in the order of `ansible-inventory --graph`."""
VARIABLES = (
    "reported",
    "verdict",
    "summary",
    "causes",
    "taints",
    "unschedulable",
    "interconnect",
    "interconnect_evidence",
    "nvlink_gbps",
    "busbw_allreduce_gbps",
    "model",
    "gpu_count",
    "driver",
    "psu",
    "findings",
    "policy",
    "read_at",
    "age_seconds",
    "labels",
    "addresses",
)
"""What a host has as `nodegauge_NAME`."""


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Reads the cluster once, or the cache."""

    NAME = "nodegauge.gpu.nodereports"

    def verify_file(self, path):
        """Only files that are named for it: any other YAML may be another plugin's."""
        return super().verify_file(path) and path.endswith(("nodereports.yml", "nodereports.yaml"))

    def parse(self, inventory, loader, path, cache=True):
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self.load_cache_plugin()
        nodes = self._nodes(self.get_cache_key(path), cache)
        nodes = [node for node in nodes if node["reported"] or self.get_option("unreported")]
        groups = {group for node in nodes for group in self._groups(node)}
        for group in sorted(groups, key=lambda name: (ORDER.index(name.split("_")[1]), name)):
            self.inventory.add_group(self._sanitize_group_name(group))
        for node in nodes:
            self._add(node)

    def _nodes(self, key, cache):
        use, renew = self.get_option("cache") and cache, self.get_option("cache") and not cache
        if use:
            try:
                return self._cache[key]
            except KeyError:
                renew = True
        nodes = self._read()
        if renew:
            self._cache[key] = nodes
        return nodes

    def _read(self):
        options = {name: self._text(name) for name in nodereports.ARGUMENTS if name != "name"}
        options["validate_certs"] = self.get_option("validate_certs")
        try:
            client = nodereports.connect(options)
            nodes, without_node = nodereports.read(client, label_selector=options["label_selector"])
        except nodereports.ClusterError as error:
            raise AnsibleParserError(f"nodegauge.gpu.nodereports: {error}") from None
        if without_node:
            self.display.warning(f"NodeReports without a node are left out: {', '.join(without_node)}")
        return nodes

    def _text(self, name):
        value = self.get_option(name)
        return self.templar.template(value) if isinstance(value, str) else value

    def _add(self, node):
        host = self.inventory.add_host(node["name"])
        variables = {f"nodegauge_{name}": node[name] for name in VARIABLES}
        for name, value in variables.items():
            self.inventory.set_variable(host, name, value)
        address = node["addresses"].get(self.get_option("address") or "")
        if address:
            self.inventory.set_variable(host, "ansible_host", address)
        for group in self._groups(node):
            self.inventory.add_host(host, group=self._sanitize_group_name(group))
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        known = self.inventory.get_host(host).get_vars()
        self._add_host_to_composed_groups(self.get_option("groups"), known, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), known, host, strict=strict)

    def _groups(self, node):
        """The names of the groups that a node is in."""
        if not node["reported"]:
            return [UNREPORTED]
        groups = [f"nodegauge_verdict_{node['verdict'] or 'unknown'}"]
        groups += [f"nodegauge_cause_{cause}" for cause in node["causes"]]
        named = {
            "interconnect": node["interconnect"],
            "model": node["model"],
            "rack": node["labels"].get(self.get_option("rack_label") or "", ""),
        }
        groups += [f"nodegauge_{kind}_{value.lower()}" for kind, value in named.items() if value]
        return groups + [REPAIR] * nodereports.needs_repair(node)
