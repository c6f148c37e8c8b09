"""The command line tool `nodegauge`.

Each subcommand is a module that is imported only when it is called: judging a file must work without the
kubernetes library and without a cluster.  Subcommands may import the judge, the contract, the probes and the
operator's kube and core; never kopf or handlers.
"""
