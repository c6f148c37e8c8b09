"""The CRDs in tests.  A schema may be stricter than the operator's type, but not laxer."""

import uuid
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from nodegauge_judge import OpenEnum
from nodegauge_operator import names
from testbed.rest import Rest

CRDS = Path(__file__).resolve().parents[2] / "crds"
SCALARS: dict[type, str] = {
    inspect.StrType: "string",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
}

Schema = dict[str, Any]


@cache
def crd(plural: str) -> Schema:
    return msgspec.yaml.decode((CRDS / f"{plural}.yaml").read_bytes())


def part(plural: str, name: str) -> Schema:
    return version(plural)["schema"]["openAPIV3Schema"]["properties"][name]


def version(plural: str) -> Schema:
    (only_version,) = crd(plural)["spec"]["versions"]
    assert isinstance(only_version, dict)
    return only_version


def nested(keys: list[str], value: Any) -> dict[str, Any]:
    """This value below these keys, the outermost first."""
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def nodes_of(schema: Schema, path: str = "") -> list[tuple[str, Schema]]:
    nodes = [(path, schema)]
    for name, child in schema.get("properties", {}).items():
        nodes += nodes_of(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        nodes += nodes_of(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        nodes += nodes_of(schema["additionalProperties"], f"{path}{{}}")
    return nodes


def differences(schema: Schema, kind: inspect.Type, path: str) -> list[str]:
    nullable = (
        [f"{path}: nullable"] if "nullable" in schema and not isinstance(kind, inspect.UnionType) else []
    )
    return nullable + _differences(schema, kind, path)


def _differences(schema: Schema, kind: inspect.Type, path: str) -> list[str]:
    match kind:
        case inspect.StructType(fields=fields):
            return _struct(schema, fields, path)
        case inspect.UnionType(types=types):
            return _union(schema, types, path)
        case inspect.ListType(item_type=item):
            return _type(schema, "array", path) + differences(schema.get("items", {}), item, f"{path}[]")
        case inspect.VarTupleType(item_type=item, max_length=most):
            wrong = _type(schema, "array", path) + _same(path, "maxItems", schema.get("maxItems"), most)
            return wrong + differences(schema.get("items", {}), item, f"{path}[]")
        case inspect.DictType(value_type=value):
            below = [*schema.get("properties", {}).values(), schema.get("additionalProperties")]
            below = [child for child in below if isinstance(child, dict)]
            wrong = [d for child in below for d in differences(child, value, f"{path}{{}}")]
            return _type(schema, "object", path) + wrong + ([] if below else [f"{path}: no values described"])
        case inspect.EnumType(cls=cls) if issubclass(cls, OpenEnum):  # newer versions add to these
            return _type(schema, "string", path) + (["open to other versions"] if "enum" in schema else [])
        case inspect.EnumType(cls=cls):
            return _same(path, "enum", sorted(schema.get("enum", [])), sorted(m.value for m in cls))
        case inspect.AnyType():
            return []
        case _ if type(kind) in SCALARS:
            return _type(schema, SCALARS[type(kind)], path) + _bounds(schema, kind, path)
    return [f"{path}: no rule for {kind}"]


def _struct(schema: Schema, fields: tuple[inspect.Field, ...], path: str) -> list[str]:
    properties = schema.get("properties", {})
    by_name = {field.encode_name: field for field in fields}
    result = _type(schema, "object", path)
    untyped, unlisted = properties.keys() - by_name.keys(), by_name.keys() - properties.keys()
    result += [
        f"{path}.{name}: not in the CRD; add it there, described and bounded" for name in sorted(unlisted)
    ]
    result += [f"{path}.{name}: not in the type; add it there" for name in sorted(untyped)]
    required = sorted(name for name, field in by_name.items() if field.required)
    result += _same(path, "required", sorted(schema.get("required", [])), required)
    for name in sorted(properties.keys() & by_name.keys()):
        here = f"{path}.{name}"
        result += differences(properties[name], by_name[name].type, here)
        if path.startswith("spec") or "default" in properties[name]:
            result += _same(here, "default", properties[name].get("default"), _default(by_name[name]))
    return result


def unbounded(schema: Schema) -> str:
    """What bound a node lacks; empty if it has one: every string, list, map and number needs one."""
    needed: dict[object, tuple[set[str], ...]] = {
        "string": ({"maxLength", "enum", "format"},),
        "array": ({"maxItems"}, {"x-kubernetes-list-type"}),
        "object": ({"properties", "maxProperties"},),
        "integer": ({"minimum"},),
        "number": ({"minimum"},),
        "boolean": (),
        None: ({"maxLength"},),
    }
    lacking = [ways for ways in needed[schema.get("type")] if not ways & schema.keys()]
    return "; ".join(f"no bound; add {' or '.join(sorted(ways))}" for ways in lacking)


def _default(field: inspect.Field) -> object:
    factory = field.default_factory
    value = field.default if factory is msgspec.NODEFAULT else factory()
    if value is msgspec.NODEFAULT or value is None or value in ("", [], {}, ()):
        return None
    if isinstance(value, tuple):
        return list(value)
    return {} if isinstance(value, msgspec.Struct) else value


def _union(schema: Schema, types: tuple[inspect.Type, ...], path: str) -> list[str]:
    kinds = {type(kind) for kind in types}
    if inspect.NoneType in kinds:
        (other,) = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
        bare = {key: value for key, value in schema.items() if key != "nullable"}
        return _same(path, "nullable", schema.get("nullable"), True) + differences(bare, other, path)
    if kinds == {inspect.IntType, inspect.StrType}:
        wrong = _same(path, "int-or-string", schema.get("x-kubernetes-int-or-string"), True)
        return wrong + [d for kind in types for d in _bounds(schema, kind, path)]
    if kinds == SCALARS.keys():
        keys = ("x-kubernetes-preserve-unknown-fields", "maxItems", "maxProperties")
        return _same(path, "scalars only", [schema.get(key) for key in keys], [True, 0, 0])
    return [f"{path}: no rule for a union of {kinds}"]


def _bounds(schema: Schema, kind: inspect.Type, path: str) -> list[str]:
    above = schema.get("minimum") if schema.get("exclusiveMinimum") else None
    bounds = {
        "ge": schema.get("minimum"),
        "gt": above,
        "le": schema.get("maximum"),
        "pattern": schema.get("pattern"),
        "max_length": schema.get("maxLength"),
    }
    return [
        line
        for bound, value in bounds.items()
        if (wanted := getattr(kind, bound, None)) is not None
        for line in _same(path, bound, value, wanted)
    ]


def _type(schema: Schema, wanted: str, path: str) -> list[str]:
    return _same(path, "type", schema.get("type"), wanted)


def _same(path: str, what: str, actual: object, wanted: object) -> list[str]:
    return [] if actual == wanted else [f"{path}: {what} is {actual!r} in the CRD and {wanted!r} in the type"]


POLICIES = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}"
REPORTS = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"
KINDS = {POLICIES: names.POLICY_KIND, REPORTS: names.REPORT_KIND}


def manifest(path: str, spec: object) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": KINDS[path],
        "metadata": {"name": f"test-{uuid.uuid4().hex[:8]}"},
        "spec": spec,
    }


def dry_run(api: Rest, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return api.create(f"{path}?dryRun=All&fieldValidation=Strict", body)
