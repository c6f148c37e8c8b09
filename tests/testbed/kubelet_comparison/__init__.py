"""How like a real kubelet the simulated one is: the same pods on both, and what the API shows of them.

`samples` is the table of pods, `perform` runs it on whatever node it is given, `facts` says in comparable
words what the API showed, `recorded.json` is what a real kubelet showed (`make e2e ARGS=--record` writes it),
and `declared` says what differs, and why.  Nothing here knows what nodegauge does.
"""
