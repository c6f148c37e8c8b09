"""Our source for Pythons older than the project's: what they lack is rewritten, or the build fails.

Edits keep every line where it is, so that a traceback of a host names lines of the repository.  The program
`host/older.py` holds what the rewritten source imports.  Only what our packages use is translated; any
other construct that the old Python lacks ends in `BuildError`, with file and line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from wheels import BuildError

MODULE = "nodegauge_older"
UNION = "older_union"
ZIP = "older_zip"
PROVIDED = {
    "datetime": {"UTC"},
    "enum": {"StrEnum"},
    "itertools": {"pairwise"},
    "statistics": {"linear_regression"},
    "typing": {"ParamSpec", "Self"},
}
"""Names that `host/older.py` has in place of the standard library's."""
LACKING = {
    "asyncio": {"Runner", "TaskGroup", "timeout", "timeout_at"},
    "contextlib": {"aclosing", "chdir"},
    "enum": {"ReprEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"get_annotations"},
    "itertools": {"batched"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "statistics": {"correlation", "covariance", "kde"},
    "types": {"EllipsisType", "NoneType", "NotImplementedType", "UnionType"},
    "typing": {"Concatenate", "LiteralString", "Never", "NotRequired", "Required", "TypeAlias", "TypeGuard"}
    | {"TypeVarTuple", "Unpack", "assert_never", "assert_type", "override", "reveal_type"},
}
"""Names of the standard library that came after 3.9 and that nothing stands in for."""
MODULES = {"tomllib"}
METHODS = {"bit_count": (3, 10), "add_note": (3, 11)}
"""Methods of built-in types, and the first Python that has them."""
DATACLASS = {"slots", "kw_only"}
SCALARS = {"bool", "bytes", "float", "int", "object", "str", "type"}
CONTAINERS = {"dict", "frozenset", "list", "set", "tuple"}


class Edit(NamedTuple):
    """Bytes of the source to replace: from and to (line from 1, column in bytes)."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def translated(source: str, *, name: str, oldest: tuple[int, int]) -> str:
    """The source as `oldest` runs it; `name`: the file, for errors.  Raises `BuildError`."""
    tree = ast.parse(source, name)
    edits = _Edits(name, oldest)
    edits.visit(tree)
    made = list(edits.made)
    if edits.imported:
        made.append(_import(tree, edits.imported, name))
    text = _applied(source, made)
    try:
        ast.parse(text, name, feature_version=oldest)
    except SyntaxError as error:
        raise BuildError(
            f"{name}:{error.lineno}: Python {_dotted(oldest)} cannot read it: {error.msg}"
        ) from None
    return text


class _Edits(ast.NodeVisitor):
    """What has to change in one file."""

    def __init__(self, name: str, oldest: tuple[int, int]) -> None:
        self.name, self.oldest, self.annotating = name, oldest, False
        self.made: list[Edit] = []
        self.imported: set[str] = set()

    def refuse(self, node: ast.expr | ast.stmt, what: str) -> None:
        raise BuildError(
            f"{self.name}:{node.lineno}: Python {_dotted(self.oldest)} has no {what}; write it without, or "
            "teach ansible/archive/old_python.py to translate it"
        )

    def visit_annotated(self, node: ast.AST) -> None:
        """All within an annotation names types."""
        before = self.annotating
        for name, value in ast.iter_fields(node):
            self.annotating = before or name in ("annotation", "returns")
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    self.visit(part)
        self.annotating = before

    visit_arg = visit_AnnAssign = visit_FunctionDef = visit_AsyncFunctionDef = visit_annotated

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        names = {alias.name for alias in node.names}
        if module in MODULES or names & LACKING.get(module, set()):
            self.refuse(node, f"{module}.{', '.join(sorted(names & LACKING.get(module, names)))}")
        moved = names & PROVIDED.get(module, set())
        if not moved:
            return
        both = [
            _from(source, [alias for alias in node.names if (alias.name in moved) is ours])
            for source, ours in ((module, False), (MODULE, True))
        ]
        self.replace(node, "; ".join(filter(None, both)))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name in MODULES:
                self.refuse(node, alias.name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr in LACKING.get(base, set()):
            self.refuse(node, f"{base}.{node.attr}")
        if node.attr in PROVIDED.get(base, set()):
            self.imported.add(f"{node.attr} as older_{node.attr}")
            self.replace(node, f"older_{node.attr}")
            return
        if METHODS.get(node.attr, self.oldest) > self.oldest:
            self.refuse(node, f"method {node.attr}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        keywords = {keyword.arg for keyword in node.keywords}
        if called == "zip" and "strict" in keywords:
            self.imported.add(ZIP)
            self.replace(node.func, ZIP)
        if called == "dataclass" and keywords & DATACLASS:
            self.refuse(node, f"dataclass({', '.join(sorted(keywords & DATACLASS))})")
        if called in ("isinstance", "issubclass") and len(node.args) == 2:
            self.visit(node.args[0])
            self.classes(node.args[1])
            return
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        members = list(_members(node))
        typed = [self.annotating or _names_a_type(one) for one in members]
        if not isinstance(node.op, ast.BitOr) or not any(typed):
            self.generic_visit(node)
            return
        if not all(typed):
            self.refuse(node, "union of these: it is not clear whether it joins types")
        self.imported.add(UNION)
        self.replace(node, ast.unparse(_Unions().visit(node)))

    def classes(self, node: ast.expr) -> None:
        """The second argument of isinstance: a tuple of classes instead of a union."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            self.replace(node, f"({', '.join(ast.unparse(one) for one in _members(node))})")
        else:
            self.visit(node)

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Put the text in the place of a node; lines that it had more are kept inside its last bracket."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        more = "\n" * (node.end_lineno - node.lineno)
        if more and text[-1] in ")]":
            text = f"{text[:-1]}{more}{text[-1]}"
        elif more:
            text += more
        self.made.append(Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text))


class _Unions(ast.NodeTransformer):
    """`A | B` as a subscript, also within."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if not isinstance(node.op, ast.BitOr):
            return self.generic_visit(node)
        members = [self.visit(one) for one in _members(node)]
        return ast.Subscript(ast.Name(UNION), ast.Tuple(members, ast.Load()), ast.Load())


def _members(node: ast.expr) -> Iterator[ast.expr]:
    """The operands of a chain of `|`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members(node.left)
        yield from _members(node.right)
    else:
        yield node


def _names_a_type(node: ast.expr) -> bool:
    """A built-in type, None, or a name in CapWords, with or without parameters."""
    if isinstance(node, ast.Subscript):
        return _names_a_type(node.value)
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Attribute):
        return node.attr[:1].isupper() and not node.attr.isupper()
    name = node.id.lstrip("_") if isinstance(node, ast.Name) else ""
    return name in SCALARS | CONTAINERS or (name[:1].isupper() and (len(name) == 1 or not name.isupper()))


def _from(module: str, names: list[ast.alias]) -> str:
    listed = ", ".join(ast.unparse(alias) for alias in names)
    return f"from {module} import {listed}" if names else ""


def _import(tree: ast.Module, names: set[str], name: str) -> Edit:
    """The import of what the edits use, on the line of `from __future__ import annotations`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            assert node.end_col_offset is not None
            at = (node.lineno, node.end_col_offset)
            return Edit(at, at, f"; from {MODULE} import {', '.join(sorted(names))}")
    raise BuildError(f"{name}: begins without `from __future__ import annotations`: add it")


def _applied(source: str, edits: list[Edit]) -> str:
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = source.encode()
    for edit in sorted(edits, reverse=True):
        start, end = (starts[line - 1] + column for line, column in (edit.start, edit.end))
        data = data[:start] + edit.text.encode() + data[end:]
    return data.decode()


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
