"""`make loadtest`: how quick, chatty, expensive and large the operator is in mode Watch."""
