"""Why allocated GPUs wait: from one window of the feed probe to findings with a cause.  They never taint."""
