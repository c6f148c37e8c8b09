"""Every kind of machine with every fault that it can have, to what must follow: the profiles (`healthy`) and
`scenarios.yaml` hold what must be, written from the rules; `worker` finds out what is."""
