"""The judgement of what a BMC says: supplies and watts to spare, rails, fans, inlet air, leaks.

`case` holds the inputs and what follows from them, `supplies` and `cooling` the rules, `judge` the verdict.
"""
