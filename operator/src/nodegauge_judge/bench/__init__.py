"""The judge's half about bandwidth: from cells and expectations to findings, labels and agreement.

Pure, like all of the judge; `model` has the types, `expectations` the rows, `floors` the rule, `judge` the
two entry points.
"""

from nodegauge_judge.bench.expectations import Expectations
from nodegauge_judge.bench.judge import judge_bench, regrade
from nodegauge_judge.bench.measured import Measured
from nodegauge_judge.bench.model import Agreement, BenchJudgement, Expectation, Peers, nobody

__all__ = [
    "Agreement",
    "BenchJudgement",
    "Expectation",
    "Expectations",
    "Measured",
    "Peers",
    "judge_bench",
    "nobody",
    "regrade",
]
