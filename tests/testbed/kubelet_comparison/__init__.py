"""How like a real kubelet the simulated one is: the same pods on both, and what the API shows of them.

`samples` is the table of pods, `perform` runs it on whatever node it is given, `facts` says in comparable
words what the API showed, and `recorded.json` is what a real kubelet showed (`make e2e ARGS=--record` writes
it).  Nothing here knows what nodegauge does.
"""
