"""A machine as an IPMI BMC shows it, encoded by the specification alone, without the code under test."""

from dataclasses import dataclass, field, replace

USER, PASSWORD = "reader", "correct-horse-42"
VOLT, CELSIUS, WATT, RPM = 4, 1, 6, 18
TEMPERATURE, VOLTAGE, FAN, SUPPLY, UNIT, OTHER = 0x01, 0x02, 0x04, 0x08, 0x09, 0x0B
THRESHOLD, PRESENCE, REDUNDANCY, SPECIFIC = 0x01, 0x08, 0x0B, 0x6F
BOARD, SUPPLIES, COOLING, INLET = 7, 10, 29, 55
THERE, FAILED, PREDICTED, NO_INPUT, NO_INPUT_OR_RANGE, INPUT_RANGE, CONFIGURATION, RESTING = range(8)
"""States of a supply's sensor by their bit (IPMI 2.0, table 42-3)."""


@dataclass
class Sensor:
    """One sensor.  `raw`: its byte; a value is (m raw + b 10^b_exponent) 10^exponent.  `states`: its bits
    now, `possible` those that its record lists.  `bounds`: raw bytes, from lower non-critical, critical,
    non-recoverable to the upper ones; None where it has none."""

    name: str
    number: int
    kind: int
    event: int = THRESHOLD
    entity: int = BOARD
    instance: int = 1
    unit: int = 0
    percent: bool = False
    m: int = 1
    b: int = 0
    exponent: int = 0
    b_exponent: int = 0
    form: int = 0
    linear: int = 0
    raw: int = 0
    states: int = 0
    possible: int = 0x7F
    bounds: tuple[int | None, ...] = (None,) * 6
    owner: int = 0x20
    available: bool = True
    scanned: bool = True
    absent: bool = False
    packed: bool = False

    @property
    def mask(self) -> int:
        return sum(1 << bit for bit, bound in enumerate(self.bounds) if bound is not None)

    @property
    def crossed(self) -> int:
        """Which thresholds its byte is at or beyond; the upper three are the later ones."""
        beyond = (
            bound is not None and (self.raw <= bound if bit < 3 else self.raw >= bound)
            for bit, bound in enumerate(self.bounds)
        )
        return sum(1 << bit for bit, yes in enumerate(beyond) if yes)

    def record(self, number: int) -> bytes:
        """Its sensor data record: full for numbers, compact for states (tables 43-1 and 43-2)."""
        full = self.event == THRESHOLD
        access = 0x01 if self.mask else 0x00
        listed = self.mask if full else self.possible
        head = bytes((self.owner, 0, self.number, self.entity, self.instance, 0x7F, 0x40 | access << 2))
        head += bytes((self.kind, self.event)) + bytes(4) + listed.to_bytes(2, "little")
        form = self.form << 6 if full else 0xC0
        head += bytes((form | self.percent, self.unit, 0))
        if full:
            head += bytes((self.linear, self.m & 0xFF, (self.m >> 8 & 0x03) << 6))
            head += bytes((self.b & 0xFF, (self.b >> 8 & 0x03) << 6, 0))
            head += bytes(((self.exponent & 0x0F) << 4 | self.b_exponent & 0x0F, 0, 0, 0, 0, 0xFF, 0))
            upper_first = [self.bounds[index] or 0 for index in (5, 4, 3, 2, 1, 0)]
            head += bytes(upper_first) + bytes(5)
        else:
            head += bytes(8)
        return _record(number, 0x01 if full else 0x02, head + _name(self.name, packed=self.packed))


@dataclass
class Machine:
    """What the BMC knows.  `inventories`: bytes by device, device 0 is the machine's own; a device that is
    located and has none does not answer.  `located`: device to instance of a supply."""

    sensors: list[Sensor]
    inventories: dict[int, bytes] = field(default_factory=dict)
    located: dict[int, int] = field(default_factory=dict)
    watts: int | None = None
    metering: bool = True
    power_on: bool = True
    seconds_off: int = 0
    clock: int | None = None

    def sensor(self, name: str) -> Sensor:
        return next(one for one in self.sensors if one.name == name)

    def records(self) -> list[bytes]:
        made = [one.record(number) for number, one in enumerate(self.sensors, 1)]
        for device, instance in self.located.items():
            body = bytes((0x20, device, 0x80, 0x00, 0x00, 0x10, 0x00, SUPPLIES, instance, 0x00))
            made.append(_record(len(made) + 1, 0x11, body + _name(f"PS{instance} FRU")))
        return made


def server(supplies: int = 4, fans: int = 6) -> Machine:
    sensors = [
        Sensor("Inlet Temp", 1, TEMPERATURE, entity=INLET, unit=CELSIUS, raw=24,
               bounds=(3, 1, None, 38, 42, None)),
        Sensor("Exhaust Temp", 2, TEMPERATURE, unit=CELSIUS, raw=41, bounds=(8, 3, None, 70, 75, None)),
        Sensor("CPU1 Temp", 3, TEMPERATURE, entity=3, unit=CELSIUS, raw=55),
        Sensor("12V", 4, VOLTAGE, unit=VOLT, m=6, exponent=-2, raw=202,
               bounds=(187, 180, None, 213, 220, None)),
        Sensor("5V", 5, VOLTAGE, unit=VOLT, m=26, exponent=-3, raw=193,
               bounds=(None, 173, None, None, 211, None)),
        Sensor("3.3V", 6, VOLTAGE, unit=VOLT, m=16, exponent=-3, raw=207,
               bounds=(None, 186, None, None, 227, None)),
    ]  # fmt: skip
    for number in range(1, fans + 1):
        sensors.append(
            Sensor(f"FAN{number}", 0x20 + number, FAN, entity=COOLING, instance=number, unit=RPM, m=100,
                   raw=84, bounds=(7, 5, None, None, None, None))
        )  # fmt: skip
    for number in range(1, supplies + 1):
        sensors += _of_supply(number)
    if supplies > 1:
        sensors.append(Sensor("PS Redundancy", 0xA0, SUPPLY, event=REDUNDANCY, entity=19, states=0x01))
    machine = Machine(sensors, {0: inventory("Example", "GX-8000", "SN-0815")}, watts=2050)
    for number in range(1, supplies + 1):
        machine.inventories[number] = inventory("Supplier", f"PWS-3K{number}", f"P-{number:04}", watts=3000)
        machine.located[number] = number
    return machine


def _of_supply(number: int) -> list[Sensor]:
    sensors = [
        Sensor(f"PS{number} Status", 0x60 + number, SUPPLY, event=SPECIFIC, states=1 << THERE),
        Sensor(f"PS{number} Input Power", 0x70 + number, OTHER, unit=WATT, m=16, raw=33),
        Sensor(f"PS{number} Output Power", 0x80 + number, OTHER, unit=WATT, m=16, raw=31),
        Sensor(f"PS{number} Input Volts", 0x90 + number, VOLTAGE, unit=VOLT, m=2, raw=115),
    ]
    return [replace(one, entity=SUPPLIES, instance=number) for one in sensors]


def crowded() -> Machine:
    machine = server()
    known = machine.sensor("CPU1 Temp")
    used = {one.number for one in machine.sensors}
    free = [number for number in range(1, 255) if number not in used][:150]
    for index, number in enumerate(free):
        kind, unit = (VOLTAGE, VOLT) if index % 2 else (TEMPERATURE, CELSIUS)
        named = replace(known, name=f"P{index} {unit}", number=number, kind=kind, unit=unit, raw=1)
        machine.sensors.append(named)
    return machine


def inventory(maker: str, product: str, serial: str, *, watts: int | None = None) -> bytes:
    """An inventory with a product area and, for a supply, its power record (FRU specification 1.3)."""
    fields = b"".join(_name(one) for one in (maker, product, "part", "1.0", serial, "", ""))
    area = bytes((1, 0, 25)) + fields + b"\xc1"
    area += bytes(-(len(area) + 1) % 8)
    area = bytes((1, (len(area) + 1) // 8)) + area[2:]
    area += _zero_sum(area)
    power = b""
    if watts is not None:
        body = watts.to_bytes(2, "little") + bytes(22)
        head = bytes((0x00, 0x82, len(body))) + _zero_sum(body)
        power = head + _zero_sum(head) + body
    offsets = bytes((1, 0, 0, 0, 1, 1 + len(area) // 8 if power else 0, 0))
    return offsets + _zero_sum(offsets) + area + power


def _record(number: int, kind: int, body: bytes) -> bytes:
    return number.to_bytes(2, "little") + bytes((0x51, kind, len(body))) + body


def _name(name: str, *, packed: bool = False) -> bytes:
    if not packed:
        return bytes((0xC0 | len(name),)) + name.encode("latin-1")
    bits = sum((ord(char) - 0x20) << 6 * index for index, char in enumerate(name.upper()))
    data = bits.to_bytes(-(-6 * len(name) // 8), "little")
    return bytes((0x80 | len(data),)) + data


def _zero_sum(data: bytes) -> bytes:
    return bytes((-sum(data) & 0xFF,))
