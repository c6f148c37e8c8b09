"""Faults of our own, put into the product one at a time: each must make a test fail (`make mutants`)."""
