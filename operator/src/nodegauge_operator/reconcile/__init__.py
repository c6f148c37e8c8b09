"""The sweep: the one loop that compares what is with what should be, and the only place that writes.

Handlers feed the store and wake it; it asks `core` for the next write, makes it through `kube`, and asks
again.
"""
