"""Rules about the cables of a power inventory: what GPUs may draw against what their cables carry.

They compare settings with what a person wrote down.  Nothing is measured, so none of them fails or gates.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, number, of_gpu, short_name
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.power_inventory import Feed, PowerInventory, entry_of, feeds
from nodegauge_judge.rule import Observation

SPARE_SHARE = 0.9
"""Share of the supply's rating above which full load leaves too little to spare.  Chosen by this project, as
for supplies that a BMC shows: they lose 5 to 10 % of their capacity in hot air."""
FIELD = "powerInventory"


def cable_watts(case: Case) -> Iterator[Observation]:
    """GPUs whose power limit is, or can be set, above what their slot and cables carry."""
    inventory = _inventory(case)
    for position, feed in feeds(case.result.gpus, inventory).items():
        gpu = case.result.gpus[position]
        limit, most = _limit(gpu), number(gpu.power.max_limit_mw)
        if limit is not None and limit > feed.watts:
            yield _above(gpu, Severity.WARN, feed, limit, f"Its power limit is {limit:g} W")
        elif limit is not None and most is not None and most / 1000 > feed.watts:
            could = f"Its power limit of {limit:g} W can be raised to {most / 1000:g} W"
            yield _above(gpu, Severity.INFO, feed, most / 1000, could)


def cable_shared(case: Case) -> Iterator[Observation]:
    """GPUs with a cable that feeds another of their plugs, or another GPU."""
    gpus = case.result.gpus
    for position, feed in feeds(gpus, _inventory(case)).items():
        for cable, fed in feed.shared.items():
            others = sorted({short_name(gpus[other]) for other in fed if other != position})
            own = fed.count(position)
            what = [f"{own} of its plugs"] if own > 1 else []
            what += [f"also {', '.join(others)}"] if others else []
            yield of_gpu(
                gpus[position],
                Severity.INFO,
                message=f"Cable {cable} feeds {' and '.join(what)}: they share what its one plug at the "
                "supply carries.",
                evidence={"cable": cable, "plugs": len(fed)},
                weight=len(fed),
            )


def supply_watts(case: Case) -> Iterator[Observation]:
    """Too few watts to spare from the supply when every GPU is at its limit."""
    inventory = _inventory(case)
    limits = [_limit(gpu) for gpu in case.result.gpus]
    gpus = sum(limit for limit in limits if limit is not None)
    need = gpus + inventory.other_watts
    if not limits or not inventory.supply_watts or need <= SPARE_SHARE * inventory.supply_watts:
        return
    known = [limit for limit in limits if limit is not None]
    each = int((SPARE_SHARE * inventory.supply_watts - inventory.other_watts) / len(limits))
    least = max(1.0, *((number(gpu.power.min_limit_mw) or 0) / 1000 for gpu in case.result.gpus))
    evidence: dict[str, Scalar] = {
        "need_watts": need,
        "gpu_watts": gpus,
        "supply_watts": inventory.supply_watts,
    }
    yield Observation(
        severity=Severity.WARN,
        location="node",
        message=f"With all GPUs at their limits ({gpus:g} W) and {inventory.other_watts} W for the rest, the "
        f"machine draws {need:g} W; its supply is rated {inventory.supply_watts} W (warns above "
        f"{SPARE_SHARE:.0%} of it).",
        evidence=evidence | ({"lower_watts": each} if least <= each < max(known) else {}),
    )


def power_inventory(case: Case) -> Iterator[Observation]:
    """What of the inventory could not be compared, and why."""
    inventory, gpus = _inventory(case), case.result.gpus
    if not gpus:
        return
    matched = {entry_of(gpu, inventory.gpus) for gpu in gpus}
    for number_, entry in enumerate(inventory.gpus):
        missing = not any(entry.applies(gpu) is not False for gpu in gpus)
        if not entry.is_model and number_ not in matched:
            why = (
                "this node has no such GPU"
                if missing
                else "an earlier entry comes first, or its GPU was not read"
            )
            field = f"{FIELD}.gpus[{number_}]"
            yield _note(field, f"{field}.gpu is {entry.gpu!r}, and {why}.", {"gpu": entry.gpu})
    for gpu in gpus:
        if inventory.gpus and all(entry.applies(gpu) is False for entry in inventory.gpus):
            yield of_gpu(
                gpu, Severity.INFO, f"No entry of {FIELD}.gpus is about it.", {"field": f"{FIELD}.gpus"}
            )
        elif (inventory.gpus or inventory.supply_watts) and _limit(gpu) is None:
            message = f"Its power limit was not read, so {FIELD} is not compared with it."
            yield of_gpu(gpu, Severity.INFO, message, {"field": FIELD})


def _inventory(case: Case) -> PowerInventory:
    return case.node.power or PowerInventory()


def _limit(gpu: Gpu) -> float | None:
    """Watts that the GPU may draw: the enforced limit, which no setting of one's own exceeds."""
    limit = number(gpu.power.enforced_limit_mw)
    return limit / 1000 if limit is not None and limit > 0 else None


def _above(gpu: Gpu, severity: Severity, feed: Feed, limit: float, what: str) -> Observation:
    least = (number(gpu.power.min_limit_mw) or 0) / 1000
    if least > feed.watts:
        way_out = f"The driver allows no limit below {least:g} W: only more cables help."
    elif severity is Severity.WARN:
        way_out = f"`nvidia-smi -pl {feed.watts} -i {gpu.index}` lowers it."
    else:
        way_out = f"Raise it to {feed.watts} W at most."
    evidence: dict[str, Scalar] = {"limit_watts": limit, "cable_watts": feed.watts}
    return of_gpu(
        gpu,
        severity,
        message=f"{what}; slot and cables carry {feed.watts} W ({feed.parts}). {way_out}",
        evidence=evidence | ({"lower_watts": feed.watts} if least <= feed.watts else {}),
        weight=limit - feed.watts,
    )


def _note(location: str, message: str, evidence: dict[str, str | int | float | bool]) -> Observation:
    return Observation(severity=Severity.INFO, location=location, message=message, evidence=evidence)


RULES = (
    HealthRule(
        code="cable-watts",
        title="the power limit is above what slot and cables carry",
        meaning=(
            "The card may draw more than its slot and its power cables are rated for. Connectors overheat, "
            "or the supply switches off under load. The cables are those of `spec.powerInventory`, or of the "
            "file given by `nodegauge judge --power-inventory`: no driver can see them. A slot carries 75 W, "
            "a 6-pin socket 75 W, an 8-pin socket 150 W, a 12-pin socket (12VHPWR, 12V-2x6) what its cable's "
            "sense pins state. Sockets on one cable share what one of them carries."
        ),
        when={
            Severity.WARN: "the enforced power limit is above the sum of slot and cables",
            Severity.INFO: "the limit is within it, but the driver would accept a limit above it",
        },
        next_step="keep the limit within what they carry, or give each socket a cable of its own.",
        way_out=(
            "`nvidia-smi -pl LOWER_WATTS -i INDEX` lowers the limit until the next boot: set it at every "
            "boot.",
            "Or give each socket a cable of its own, with the rating that the card needs.",
            "If the inventory is wrong, correct `spec.powerInventory`.",
        ),
        check=cable_watts,
    ),
    HealthRule(
        code="cable-shared",
        title="one power cable feeds several plugs",
        meaning=(
            "A daisy chain (pigtail) or a splitter: one plug at the supply feeds several at the cards. Each "
            "gets its share of what that one plug carries. Give each socket a cable of its own."
        ),
        when={Severity.INFO: "a name is listed for more than one plug in `spec.powerInventory`"},
        next_step="use one cable per socket.",
        way_out=(
            "Use one cable per socket, each from its own plug at the supply.",
            "`cable-watts` says whether the power limit fits what is left.",
        ),
        check=cable_shared,
    ),
    HealthRule(
        code="supply-watts",
        title="too few watts to spare",
        meaning=(
            "With all GPUs at their power limits and the rest of the machine at `powerInventory.otherWatts`, "
            "little or nothing of the supply's rating (`powerInventory.supplyWatts`) is left. Short peaks "
            "are well above a limit. Servers state their supplies through the BMC: see `spare-watts`."
        ),
        when={
            Severity.WARN: (
                "limits and `powerInventory.otherWatts` together are above 0.9 of "
                "`powerInventory.supplyWatts`"
            )
        },
        next_step="lower the GPUs' power limits, or fit a larger supply.",
        way_out=(
            "`nvidia-smi -pl LOWER_WATTS` lowers the limit of all GPUs.",
            "Fit a supply of a higher rating.",
        ),
        check=supply_watts,
    ),
    HealthRule(
        code="power-inventory",
        title="the power inventory does not fit the GPUs",
        meaning=(
            "An entry of `spec.powerInventory` matches no GPU of the node, a GPU has no entry, or its "
            "power limit was not read. What cannot be compared is not judged. An entry for a model need "
            "not match: a policy can list the models of all its nodes."
        ),
        when={
            Severity.INFO: "an entry by index, UUID or address has no GPU, or a GPU has no entry or no limit"
        },
        next_step="correct the named field; `nvidia-smi -L` lists index, model and UUID.",
        way_out=(
            "`nvidia-smi --query-gpu=index,name,uuid,pci.bus_id --format=csv` lists what an entry can name.",
            "Write indices and PCI addresses in quotes: YAML reads 0000:01:00.0 as a number.",
        ),
        check=power_inventory,
    ),
)
