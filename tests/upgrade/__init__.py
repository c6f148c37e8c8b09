"""`make upgrade`: from an earlier commit to this checkout, back, and forth again."""
