"""A simulated kubelet: a real Node and real pods in the API, whose containers are plain processes.

For machines without a container engine, without root and without a GPU.  It exists so that the whole way from
`helm install` to a labelled node is run by the real control plane and the real programs; it decides nothing
about GPUs.  `agent.Kubelet` is one node; `python -m testbed.kubelet.agent` hosts many in one process.
"""
