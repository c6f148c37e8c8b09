"""Amounts as Kubernetes writes them, such as `500m`, `64` or `1056302388Ki`.

Source: kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity.
"""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\+?([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})([A-Za-z]{0,2}|[eE][+-]?[0-9]{1,2})")
_FACTORS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_FACTORS |= {"E": 1e18} | {f"{unit}i": 2.0 ** (10 * power) for power, unit in enumerate("KMGTPE", start=1)}


def quantity(text: str, *, most: float) -> float | None:
    """The amount; None for what is no amount, is negative, or is above `most`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    factor = _FACTORS.get(unit)
    if factor is None:
        factor = float(f"1{unit}") if unit[0] in "eE" and unit[1:] else None
    amount = None if factor is None else float(number) * factor
    return amount if amount is not None and amount <= most else None
