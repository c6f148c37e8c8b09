"""The nodegauge operator: watches GPU nodes, runs probes, and writes what was measured where people look.

Layers, each importing only those to its right: handlers, reconcile, kube, core, api.
kopf is imported in `handlers` alone, the kubernetes client in `kube` alone; `core` is pure.
"""
