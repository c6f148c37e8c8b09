"""The sweep: the one loop that compares the cluster with what it should be, and the only code that writes.

Handlers fill the cache and wake the sweep; it asks `core` for the next write, makes it through `kube`, and
asks again.
"""
