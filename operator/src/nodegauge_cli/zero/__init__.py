"""`nodegauge zero`: which class of nodes holds a model, how, and what a step costs there."""
