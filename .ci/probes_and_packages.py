"""What `complete` asks of the things that probes read, simulated machines answer, and users install."""

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pynvml
from checkout import (
    Thing,
    at,
    fields,
    file_of,
    files,
    holds,
    lacking,
    modules_of,
    row,
    tested,
    text,
    token,
    tokens,
)

from nodegauge_contract import columns
from nodegauge_contract.chassis import ChassisReading
from nodegauge_contract.model import Result
from nodegauge_probes import collectors
from testbed.driver.releases import table
from testbed.profiles import reading

PROBES, BMC = "probes/src/nodegauge_probes", "operator/src/nodegauge_bmc"
CONTRACT, DRIVER, GOLDEN = "probes/src/nodegauge_contract", "tests/testbed/driver", "tests/golden/result-"
CHART, MODULES, ROLES = "charts/nodegauge", "ansible/plugins/modules", "ansible/roles"
VALUES, SCHEMA = f"{CHART}/values.yaml", f"{CHART}/values.schema.json"
VARIANT, ANSIBLE = "tests/chart/variants/all.yaml", "ansible/README.md"
ONLY_FAKED = {"nvmlDeviceGetClock"}
"""Calls that no driver of `releases.yaml` needs: of releases to come."""
OF_THE_TEST = {"self/cgroup", "fs/cgroup", "information"}
"""Files of the kernel that tests of a probe write themselves; no simulated machine has them."""
FREE = {"affinity", "textResources", "resources", "policySpec"}
"""Definitions of the chart's schema whose values Kubernetes knows."""
SWITCHES = re.compile(r"\.(create|enabled|tag|digest|registry)$")
"""Values of the chart that the variant `all` may leave as they are."""


def contract() -> Iterator[str]:
    """Members of results and of BMC readings."""
    frozen = {
        path for file in files(GOLDEN) for path in paths(columns.unfold(msgspec.json.decode(text(file))))
    }
    yield from lacking(
        fields(Result, "", lists=True),
        (
            lambda t: t.name in frozen,
            f"in no golden document; raise MINOR in {CONTRACT}/model.py, and add a new {GOLDEN}VERSION-"
            "members.json (tests/golden/README.md)",
        ),
    )
    for struct, reader, test in (
        (Result, PROBES, "tests/probes/test_health.py (or test_sysfs.py)"),
        (ChassisReading, BMC, "tests/unit/test_bmc_redfish.py (or test_bmc_ipmi.py)"),
    ):
        yield from lacking(
            (t for t in fields(struct, "", lists=True) if t.name not in ("schema", "major")),
            (
                token(reader, form="{t.spellings[0]}"),
                f"nothing reads it; set it in the module of its subject in {reader}",
            ),
            tested(test),
        )


def paths(value: Any, path: str = "") -> Iterator[str]:
    """The path of every member in a document."""
    for inner in value if isinstance(value, list) else ():
        yield from paths(inner, path)
    for name, inner in value.items() if isinstance(value, dict) else ():
        here = f"{path}.{name}".lstrip(".")
        yield from (here, *paths(inner, here))


def driver() -> Iterator[str]:
    """Calls and fields of NVML, files of the kernel."""
    calls = {call: f for f in files(PROBES, ".py") for call in re.findall(r'"(nvml[A-Z]\w+)"', text(f))}
    able = {name for functions in table().functions.values() for name in functions}
    yield from lacking(
        (Thing(file, call) for call, file in calls.items() if call not in ONLY_FAKED),
        (
            lambda t: able & functions_of(t.name),
            f"the simulated driver does not answer it; add it to {DRIVER}/releases.yaml and {DRIVER}/src/"
            "SUBJECT.c",
        ),
    )
    source = text(f"{DRIVER}/src/fields.c")
    numbers = {*map(int, re.findall(r"\b\d+\b", source))}
    for first, last in re.findall(r"id >= (\d+) && id <= (\d+)", source):
        numbers |= {*range(int(first), int(last) + 1)}
    yield from lacking(
        (
            Thing(file_of(module), f"{name} ({number})", more=number)
            for module in modules_of(collectors)
            for name, value in vars(module).items()
            if name.startswith("FI_")
            for number in (value if isinstance(value, tuple) else (value,))
        ),
        (
            lambda t: t.more in numbers,
            "the simulated driver does not answer this field; add {{{t.more}, TYPE, KEY, READING}} to "
            f"{DRIVER}/src/fields.c, and KEY to tests/testbed/hardware/gpustate.py",
        ),
    )
    simulated = tokens("tests/testbed/hardware", "tests/testbed/profiles")
    paths = {path: f for f in files(f"{PROBES}/host", ".py") for path in re.findall(r'/ "([^"]+)"', text(f))}
    yield from lacking(
        (Thing(file, path) for path, file in paths.items() if path not in OF_THE_TEST),
        (
            lambda t: simulated.issuperset(t.name.split("/")),
            "no simulated machine has this file; write it in tests/testbed/hardware/sysfs.py, from a value "
            "in tests/testbed/profiles/hostmodel.py",
        ),
    )
    for name in reading.names():
        try:
            reading.load(name)
        except reading.ProfileError as error:
            yield from (f"tests/testbed/profiles/{line}" for line in str(error).splitlines())


def functions_of(call: str) -> set[str]:
    """The driver's functions behind a call of pynvml."""
    wrapper = getattr(pynvml, call, None)
    source = inspect.getsource(wrapper) if wrapper else f'_nvmlGetFunctionPointer("{call}")'
    inner = set(re.findall(r"\b(nvml[A-Z]\w+)\(", source)) - {call}
    direct = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', source))
    return direct or set().union(*map(functions_of, inner))


# -- chart and collection


def chart() -> Iterator[str]:
    """Values of the chart; the generator of its page wants their comments."""
    schema = msgspec.json.decode(text(SCHEMA))
    defaults, variant = (msgspec.yaml.decode(text(f)) for f in (VALUES, VARIANT))
    templates = "\n".join(map(text, files(f"{CHART}/templates")))
    yield from in_schema(defaults, schema, schema["definitions"], templates=templates)

    def rendered(thing: Thing) -> bool:
        groups = itertools.accumulate(f"Values.{thing.name}".split("."), "{}.{}".format)
        next(groups)
        return any(re.search(rf"[.]{re.escape(group)}(?![.\w])", templates) for group in groups)

    yield from lacking(
        (Thing(VALUES, path) for path in leaves(defaults)),
        (rendered, f"no template reads it; read .Values.{{t.name}} in {CHART}/templates"),
        (
            lambda t: SWITCHES.search(t.name) or at(variant, t.name) not in (None, at(defaults, t.name)),
            f"the variant `all` keeps its default; add {{t.name}} with another value to {VARIANT}",
        ),
    )


def in_schema(
    values: Any, rule: Any, definitions: Any, path: str = "", *, templates: str = ""
) -> Iterator[str]:
    """What values and schema do not have alike; null may remove maps and lists, no group and single value,
    unless a template has its default, for releases that are older than it."""

    def resolved(rule: Any) -> Any:
        name = rule.get("$ref", "").removeprefix("#/definitions/")
        return {} if name in FREE else definitions.get(name, rule)

    rule = resolved(rule)
    if not isinstance(values, dict) or "properties" not in rule:
        return
    listed = {key: resolved(each) for key, each in rule["properties"].items() if key != "global"}
    for key in sorted(values.keys() - listed.keys()):
        yield f"{VALUES}: {path}{key}: the schema lacks it; add it to properties and required in {SCHEMA}"
    for key in sorted(listed.keys() - values.keys()):
        yield f"{SCHEMA}: {path}{key}: no such value; add it to {VALUES}"
    if rule.get("additionalProperties") is not False:
        yield f"{SCHEMA}: {path}: takes any value; add additionalProperties: false"
    for key in sorted(values.keys() & listed.keys()):
        whole = isinstance(values[key], list) or (
            isinstance(values[key], dict) and "properties" not in listed[key]
        )
        optional = whole or f".Values.{path}{key} | default" in templates
        if optional == (key in rule["required"]):
            yield f"{SCHEMA}: {path}{key}: {'remove it from' if optional else 'add it to'} required"
        yield from in_schema(values[key], listed[key], definitions, f"{path}{key}.")


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The path of every value that is no group."""
    for key, value in values.items():
        yield from leaves(value, f"{path}{key}.") if isinstance(value, dict) and value else [path + key]


def collection() -> Iterator[str]:
    """Modules and roles of the Ansible collection."""
    plugin = "plugins/modules/{t.name}.py"
    yield from lacking(
        (Thing(file, Path(file).stem) for file in files(MODULES, ".py")),
        *(
            (holds("{t.file}", f"\n{part} = "), f'no {part}; add {part} = r"""...""" to {{t.file}}')
            for part in ("DOCUMENTATION", "EXAMPLES", "RETURN")
        ),
        *(
            (
                holds(ignored, f"{plugin} "),
                f"sanity lacks it; add `{plugin} validate-modules:missing-gplv3-license` to {ignored}",
            )
            for ignored in files("ansible/tests/sanity/ignore-")
        ),
        (
            row(ANSIBLE, "| module | `{t.name}` |"),
            f"README lacks it; add `| module | `{{t.name}}` | ... |` to {ANSIBLE}",
        ),
        tested("tests/collection/test_{t.name}.py"),
    )
    roles = sorted({file.split("/")[2] for file in files(ROLES)})
    parts = ("tasks/main.yml", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "README.md")
    yield from lacking(
        (Thing(f"{ROLES}/{role}", role) for role in roles),
        *((holds(f"{{t.file}}/{part}", ""), f"no {part}; add {{t.file}}/{part}") for part in parts),
        (
            holds("{t.file}/README.md", "nodegauge.gpu.{t.name}"),
            "no example; add a play with nodegauge.gpu.{t.name} to {t.file}/README.md",
        ),
        (
            row(ANSIBLE, "| role | [`{t.name}`]("),
            f"README lacks it; add `| role | [`{{t.name}}`](roles/{{t.name}}/README.md) | ...` to {ANSIBLE}",
        ),
        tested("tests/collection/test_{t.name}.py"),
    )
    for role in roles:
        file, specs = f"{ROLES}/{role}/defaults/main.yml", f"{ROLES}/{role}/meta/argument_specs.yml"
        yield from lacking(
            (Thing(file, variable, more=role) for variable in msgspec.yaml.decode(text(file)) or ()),
            (
                lambda t: t.name.startswith(f"{t.more}_"),
                "the role's name is missing; call it {t.more}_{t.name}",
            ),
            (holds(specs, "\n      {t.name}:"), f"not described; add it to options in {specs}"),
        )
