"""A simulated kubelet: a real Node and real pods in the API, whose containers are plain processes.

It exists so that the whole way from `helm install` to a labelled node is run by the real control plane and
the real programs; it decides nothing about GPUs.
"""
