# nodegauge: Apache-2.0, see LICENSE
"""Options of everything that reads a cluster."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig. By default E(KUBECONFIG), C(~/.kube/config), or in a pod its account.
    type: path
  context:
    description: Context of the kubeconfig. By default its current one.
    type: str
  host:
    description: URL of the API server, to be used with O(api_key) instead of a kubeconfig.
    type: str
  api_key:
    description: Bearer token for the API server.
    type: str
  ca_cert:
    description: Path of the CA certificate of the API server.
    type: path
  validate_certs:
    description: Whether to verify the certificate of the API server.
    type: bool
    default: true
  label_selector:
    description: Read only nodes with these labels, in the form C(key=value,other).
    type: str
requirements:
  - "the Python package kubernetes 24 or newer, where this runs"
notes:
  - Needs the rights to list nodes and C(nodereports.nodegauge.dev).
"""
