"""The API server, behind one seam: typed errors, bounded calls, a rate limit, and one module per resource.

`kubernetes` is imported here and nowhere else; nothing here decides.
"""
