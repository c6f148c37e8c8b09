"""`make loadtest`: how quick, chatty, expensive and large the operator is in mode Watch.  Numbers are of the
machine: a loop of writes that knows nothing runs before and after."""
