"""`nodegauge ticket`: what a vendor needs for a replacement, in the form that it asks for.

`facts` says what a ticket may contain.  `objects` finds the objects of a node in a cluster or a file,
`collect` fills the facts from them, or from the record of a node that is gone, and `logs` adds what to save
before a reboot.  Each form has a module: `text`, `nvidia`, `azure` and `as_json`.
"""
