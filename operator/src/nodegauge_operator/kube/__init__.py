"""The API server behind one seam: typed errors, timeouts, a rate limit, and one module per resource.

Only this package imports `kubernetes`; it makes no decisions.
"""
