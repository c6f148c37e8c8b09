"""How properties are tried."""

from hypothesis import HealthCheck, Phase, settings


def tried(examples: int) -> settings:
    """How many examples a property is tried with: always the same ones."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
