"""The judge's half about bandwidth: from cells and expectations to findings, labels and agreement.

Pure, like all of the judge; `model` has the types, `expectations` the rows, `grade` the rules.
"""
