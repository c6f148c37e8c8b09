"""The judge's half about bandwidth: from cells and expectations to findings, labels and agreement.

Pure, like all of the judge; `model` has the types, `expectations` the rows, `floors` the rule, `judge` the
two entry points.
"""

from nodegauge_judge.nccl.expectations import Expectations
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import Measured
from nodegauge_judge.nccl.model import Agreement, Expectation, NcclJudgement, Peers, nobody

__all__ = [
    "Agreement",
    "Expectation",
    "Expectations",
    "Measured",
    "NcclJudgement",
    "Peers",
    "judge_nccl",
    "nobody",
    "regrade",
]
