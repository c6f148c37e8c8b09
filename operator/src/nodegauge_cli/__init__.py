"""The command `nodegauge`: what people type.

Each subcommand is a module of its own, imported when it is called: judging a file must work where neither
kubernetes nor a cluster is at hand.  It may import the judge, the contract, the probes and the operator's
kube and core; never kopf or handlers.
"""
