"""The nodegauge operator: watches GPU nodes, runs probes, and writes the results to nodes and reports.

Layers, each importing only those to its right: handlers, reconcile, kube, core, api.
kopf is imported in `handlers` alone, the kubernetes client in `kube` alone; `core` is pure.
"""
