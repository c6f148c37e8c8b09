"""`nodegauge ticket`: what a vendor needs for a replacement, in the form that it asks for.

`facts` says what a ticket may contain; `collect` fills it from the objects of a cluster, and `recorded` from the record of a node
that is gone.  `logs` knows what to save before a reboot.  Each form has a module: `text`, `nvidia`, `azure` and `as_json`.
"""
