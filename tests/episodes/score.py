"""What the judge answers on episodes, counted: the confusion matrix, precision and recall."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from episodes import CAUSES, SOUND, TRUTHS, Episode, Origin
from nodegauge_judge.feed.causes import FeedCause
from nodegauge_judge.feed.judge import judge_feed

UNKNOWN = FeedCause.UNKNOWN.value
PRECISION, RECALL = 0.95, 0.90
"""What is asked of every cause, and of all together."""
SHORT = {
    "cpu-cores": "cores",
    "cpu-quota": "quota",
    "storage": "storage",
    "network-storage": "network",
    "host-memory": "memory",
    "pcie-or-numa": "pcie",
    "one-slow-gpu-holds-all": "slow",
    "small-batches": "small",
    UNKNOWN: "unknown",
    SOUND: "none",
}


class Answer(Struct, frozen=True, kw_only=True):
    """What the judge said of one episode: a cause, `unknown`, or `SOUND` for no finding of starved GPUs."""

    episode: Episode
    named: str

    @property
    def is_right(self) -> bool:
        return self.named == self.episode.truth


def ask(episode: Episode) -> Answer:
    judgement = judge_feed(episode.result, pods=episode.pods)
    return Answer(episode=episode, named=judgement.cause or SOUND)


class Score(Struct, frozen=True, kw_only=True):
    answers: tuple[Answer, ...]

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> "Score":
        return cls(answers=tuple(map(ask, episodes)))

    def count(self, truth: str, named: str) -> int:
        return sum(answer.episode.truth == truth and answer.named == named for answer in self.answers)

    def precision(self, cause: str) -> float:
        named = [answer for answer in self.answers if answer.named == cause]
        return sum(answer.is_right for answer in named) / len(named) if named else 0.0

    def recall(self, cause: str) -> float:
        meant = [answer for answer in self.answers if answer.episode.truth == cause]
        return sum(answer.is_right for answer in meant) / len(meant) if meant else 0.0

    @property
    def overall(self) -> tuple[float, float]:
        """Precision and recall over all causes; `unknown` names none."""
        named = [answer for answer in self.answers if answer.named in CAUSES]
        meant = [answer for answer in self.answers if answer.episode.truth in CAUSES]
        right = sum(answer.is_right for answer in meant)
        return right / len(named), right / len(meant)

    @property
    def false_alarms(self) -> list[Answer]:
        return [a for a in self.answers if a.episode.truth == SOUND and a.named != SOUND]

    @property
    def shortfalls(self) -> list[str]:
        """What is asked and was not reached; empty if all was."""
        lines = [
            f"{cause}: precision {p:.2f}" for cause in CAUSES if (p := self.precision(cause)) < PRECISION
        ]
        lines += [f"{cause}: recall {r:.2f}" for cause in CAUSES if (r := self.recall(cause)) < RECALL]
        return lines + [f"sound, {a.episode.kind}: {a.named}" for a in self.false_alarms]

    def matrix(self) -> Iterator[str]:
        """Markdown: rows are the truth, columns what was said."""
        named = (*CAUSES, UNKNOWN, SOUND)
        yield "| truth | " + " | ".join(SHORT[name] for name in named) + " | precision | recall | produced |"
        yield "|---" * (len(named) + 4) + "|"
        for truth in TRUTHS:
            cells = [str(self.count(truth, name) or "·") for name in named]
            made = [a.episode.origin for a in self.answers if a.episode.truth == truth]
            share = f"{made.count(Origin.PRODUCED)} of {len(made)}"
            rates = (
                ["", ""] if truth == SOUND else [f"{self.precision(truth):.2f}", f"{self.recall(truth):.2f}"]
            )
            yield f"| {truth} | " + " | ".join([*cells, *rates, share]) + " |"
        precision, recall = self.overall
        right = Counter(a.episode.origin for a in self.answers if a.is_right)
        every = Counter(a.episode.origin for a in self.answers)
        sound = sum(a.episode.truth == SOUND for a in self.answers)
        yield ""
        yield (
            f"Precision {precision:.3f}, recall {recall:.3f}; {len(self.false_alarms)} of {sound} sound "
            "episodes were said to starve. Right: "
            + ", ".join(f"{right[origin]} of {every[origin]} {origin}" for origin in Origin)
            + "."
        )

    def mistakes(self) -> Iterator[str]:
        for answer in self.answers:
            if not answer.is_right:
                episode = answer.episode
                yield f"{episode.origin} {episode.truth} ({episode.kind}): {answer.named}"
