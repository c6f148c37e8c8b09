"""A document by column instead of by row, so that a result fits into its message.

Sixteen GPUs have each of two hundred members sixteen times.  Written by column and in the order in which
the schema declares them, members need no names, values that all GPUs share are written once, values that
were not read are not written, and numbers of one kind are adjacent (`cells`).  A column of objects is the
list of its members' columns, or `{"-": [that list, 3]}` where object 3 has the default in all of them (a
lost GPU's have); a column of lists is their lengths and then one column of all their items.

So the order of members is part of the wire: add new ones at the end of their struct, and never move or
remove one.  A reader skips columns after those that it knows, and uses its own default for missing ones.

The preset dictionary (`DICTIONARY`) is text that every result repeats, known to both sides: reasons and
names first, then the texts of three machines under load (DGX-1, H100 with drivers 580 and 550), with long
lists cut short.  Near repeats cost deflate less than far ones, so the most typical text is last.  It is
frozen: a reader with a different dictionary cannot unpack a message and reports a wrong checksum.  A new
one needs a new prefix.

Unfolding is bounded: depth by the schema, rows and cells by `cells.Unfolding`.  Pure functions over JSON's
own types; `codec` checks the schema itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import inspect

from nodegauge_contract.values import Unavailable
from nodegauge_contract.wire.cells import (
    ABSENT,
    EXCEPT,
    MAX_ROWS,
    BadColumns,
    Folding,
    Unfolding,
    fold,
    skip,
    unfold,
)

NO_DEFAULT: Final = object()
PRESENT = 1


class Leaf:
    """A number, a text, a flag, null, or the reason why there is none."""

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        return fold(values, into, default=default)

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        return unfold(column, rows, source)

    def paths(self, prefix: str) -> Iterator[str]:
        yield prefix


class Group:
    """An object: (name, plan, default) of its members in declaration order."""

    def __init__(self, members: list[tuple[str, Plan, Any]]) -> None:
        self._members = members
        self._blank = {name: usual for name, _, usual in members}

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        blank = [row for row, value in enumerate(values) if value == self._blank]
        if len(blank) == len(values):
            return None
        if not blank:
            return self._columns(values, into)
        return {EXCEPT: [self._columns([v for v in values if v != self._blank], into), *blank]}

    def _columns(self, values: list[Any], into: Folding) -> list[Any]:
        columns = [
            plan.fold([value[name] for value in values], into, default=usual)
            for name, plan, usual in self._members
        ]
        while columns and columns[-1] is None and self._members[len(columns) - 1][2] is not NO_DEFAULT:
            columns.pop()
        return columns

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        source.spend(rows)
        objects: list[dict[str, Any]] = [{} for _ in range(rows)]
        columns, blank = _without_blank(column, rows)
        filled = [each for row, each in enumerate(objects) if row not in blank] if blank else objects
        for (name, plan, _), members in zip(self._members, columns, strict=False):
            values = plan.unfold(members, len(filled), source)
            if members is None and values[:1] == [ABSENT]:
                continue
            for each, value in zip(filled, values, strict=True):
                if value is not ABSENT:
                    each[name] = value
        for unknown in columns[len(self._members) :]:
            skip(unknown, source)
        return objects

    def paths(self, prefix: str) -> Iterator[str]:
        for name, plan, _ in self._members:
            yield from plan.paths(f"{prefix}.{name}" if prefix else name)


class Many:
    """A list."""

    def __init__(self, item: Plan) -> None:
        self._item = item

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        lengths = fold([len(value) for value in values], into, default=0)
        items = [item for value in values for item in value]
        return [lengths, self._item.fold(items, into, default=NO_DEFAULT)] if items else None

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        if column is None:
            return [[] for _ in range(rows)]
        lengths, items = _two(column)
        counts = [0 if count is ABSENT else count for count in unfold(lengths, rows, source)]
        if not all(type(count) is int and 0 <= count <= MAX_ROWS for count in counts):
            raise BadColumns("lengths that are no numbers, or too large")
        total = sum(counts)
        if total > MAX_ROWS:
            raise BadColumns(f"lists of more than {MAX_ROWS} items together")
        unfolded = self._item.unfold(items, total, source)
        if ABSENT in unfolded:
            raise BadColumns("a list with a missing item")
        left = iter(unfolded)
        return [list(islice(left, count)) for count in counts]

    def paths(self, prefix: str) -> Iterator[str]:
        yield from self._item.paths(f"{prefix}[]")


class Maybe:
    """A list or an object, or instead null or the reason why there is none."""

    def __init__(self, inner: Many | Group) -> None:
        self._inner = inner
        self._kind = list if isinstance(inner, Many) else dict

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        there = [type(value) is self._kind and not _is_reason(value) for value in values]
        flags = [PRESENT if is_there else value for is_there, value in zip(there, values, strict=True)]
        inner = [value for is_there, value in zip(there, values, strict=True) if is_there]
        column = [fold(flags, into, default=default), None]
        if inner:
            column[1] = self._inner.fold(inner, into, default=NO_DEFAULT)
        return None if column == [None, None] else column

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        if column is None:
            return unfold(None, rows, source)
        flags, inner = _two(column)
        cells = unfold(flags, rows, source)
        there = [type(cell) is int and cell == PRESENT for cell in cells]
        left = iter(self._inner.unfold(inner, sum(there), source))
        return [next(left) if is_there else cell for is_there, cell in zip(there, cells, strict=True)]

    def paths(self, prefix: str) -> Iterator[str]:
        yield from self._inner.paths(f"{prefix}?")


Plan = Leaf | Group | Many | Maybe


def plan_of(kind: type) -> Plan:
    """How documents of this msgspec type are folded."""
    return _plan(inspect.type_info(kind))


def _plan(kind: inspect.Type) -> Plan:
    if isinstance(kind, inspect.Metadata):
        return _plan(kind.type)
    if isinstance(kind, inspect.ListType):
        return Many(_plan(kind.item_type))
    if isinstance(kind, inspect.StructType) and kind.cls is not Unavailable:
        return Group([(field.encode_name, _plan(field.type), _default(field)) for field in kind.fields])
    if isinstance(kind, inspect.UnionType):
        for inner in map(_plan, kind.types):
            if isinstance(inner, Many | Group):
                return Maybe(inner)
    return Leaf()


def _default(field: inspect.Field) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    return NO_DEFAULT


def _is_reason(value: Any) -> bool:
    return type(value) is dict and value.keys() == {"unavailable"}


def _without_blank(column: Any, rows: int) -> tuple[list[Any], set[int]]:
    """An object's columns, and the rows with the default in all of them."""
    if column is None:
        return [], set()
    if type(column) is list:
        return column, set()
    form = column.get(EXCEPT) if type(column) is dict else None
    if type(form) is not list or not form or type(form[0]) is not list:
        raise BadColumns("an object that is no list of columns")
    if not all(type(row) is int and 0 <= row < rows for row in form[1:]):
        raise BadColumns("exceptions that are no rows")
    return form[0], set(form[1:])


def _two(column: Any) -> list[Any]:
    if type(column) is not list or len(column) != 2:
        raise BadColumns("a column that is no pair")
    return column


DICTIONARY = (
    b'"sysfs: ","no such file in sysfs","numa_node is -1: the firmware does not say","the chip has no '
    b'alarm for it","no memory sensor (reads 0)","no active NVLink","not in this driver\'s version of t'
    b'he call","NVML_VALUE_NOT_AVAILABLE","NVML_ERROR_NO_PERMISSION","NVML_ERROR_TIMEOUT","NVML_ERROR_'
    b'UNKNOWN","NVML_ERROR_NO_DATA","NVML_ERROR_RESET_REQUIRED","NVML_ERROR_GPU_IS_LOST","DOWN","Polli'
    b'ng","Disabled","INIT","NVIDIA A100-SXM4-80GB","NVIDIA H200","NVIDIA B200","NVIDIA GeForce RTX 40'
    b'90","NVIDIA RTX 6000 Ada Generation","Tesla V100-SXM3-32GB","Tesla T4","nct6798","corsairpsu","p'
    b'mbus","acpi_power_meter","v_out +12v","vin","vout1","pin","pout1","iin","iout1",[0,1,2,3,4,5,6,7'
    b',8,9,10,11,12,13,14,15,16,17],"mlx5_0","mlx5_1","mlx5_2","mlx5_3","mlx5_4","mlx5_5","mlx5_6","ml'
    b'x5_7","mlx5_8","mlx5_9","mlx5_10","mlx5_11","mlx5_12","mlx5_13","mlx5_14","mlx5_15","mlx5_16","m'
    b'lx5_17",["PIX","PIX","PXB","PXB","NODE","NODE","NODE","NODE","SYS","SYS","SYS","SYS","SYS","SYS"'
    b',"SYS","SYS","X","PIX",[-1,40,40,40,50,50,50,50,40,-1,10,20,20,[16,[16,[-1,0,0,0,0,0,0,0,0,0,0,0'
    b",0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,"
    b"0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0"
    b",0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0"
    b",0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,"
    b"0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,0,0,0,0,0,0"
    b',0,0,0,0,0,0,0,0,0,0,-1]]],["1.1",["NVML_ERROR_FUNCTION_NOT_FOUND","NVML_ERROR_INVALID_ARGUMENT"'
    b',"driver 418.87.01 has no such counters (they came with 575)","NVML_ERROR_NOT_SUPPORTED","the ch'
    b'ip has no such limit"],[null,null,"health","run-1","node-1",225,[",12345678],["418.87.01","10.41'
    b'8.87.01",10010],[8,[{"":[0,1]},{"GPU-????????-????-5???-????-????????????":16},"Tesla V100-SXM2-'
    b'16GB",{"0000:??:00.0":16},{"":[0,1]},{"1????????????":10},"88.00.18.00.01",[0],"7.0",[0],16130,t'
    b'rue,[0],["0-19,40-59","0-19,40-59","0-19,40-59","0-19,40-59","20-39,60-79","20-39,60-79","20-39,'
    b'60-79","20-39,60-79"],[0],[0,0,0,0,1,1,1,1],[0],[3,16,3,16,[0],[],[],[],[1],[1]],[4,[[[1,1,2,2,1'
    b',2],[0,1,2,3,4,5]],1,1,["0000:07:00.0","0000:0a:00.0","0000:0b:00.0","0000:85:00.0","0000:06:00.'
    b'0","0000:0a:00.0"],[0],25781,2]],[1],[[0],[0],[0],[0],[0],[0]],[[],[],90,87,85,83,[0],[1],[1],[1'
    b"],[1]],[[],[1],[1],300000,300000,150000,300000,[],[0]],[[],877,1530,877,0],[511,3,[2,[[4,32,4,32"
    b",4,32],[],[]]]],[[2],[],[],[2],[2],[2],[],[3]],[[],[],[],[],0,[1],[1],[1]],[1,[],[],[],[],[0]],["
    b"[0],[0],[0],[0],[0],[0],0,[0],[0],[0],[1]],[[0],[[null,null,null,null,null,null,1,null],79]],nul"
    b"l,[1,[[0.2,0.201,0.201,0.201,0.201,0.201,0.201,0.201],3,[1,[[],[],[]]],[1,[[],[],[]]],[1,[[],[],"
    b"[]]],[1,[[],[],[]]],[1,[0,0,0]],[1,[[],[],[]]],[1,[[],[],[2],[2],[2],[],[]]]]]]],[[8,[8,[-1,10,3"
    b'0,30,50,50]]],[8,[8,[-1,0,0,0,0,3]]],[8,[8,[-1,0,0,0,0,3]]],[8,[8,[-1,0,0,0,0,5]]]],[[4,{"mlx5_?'
    b'":10}],[4,{"0000:??:00.0":16}],[4,[8,["PIX","PIX","PHB","PHB","SYS","SYS"]]],[4,[4,["X","SYS","P'
    b'HB","SYS","SYS","X"]]],[4,[{"":[0,1]},1,"ACTIVE","LinkUp",100,"InfiniBand",[],[],[]]]],[[1,[8,{"'
    b'0000:??:00.0":16}]]],["1.1",["NVML_ERROR_NOT_SUPPORTED","NVML_ERROR_FUNCTION_NOT_FOUND","the chi'
    b'p has no such limit"],[null,null,"health","run-1","node-1",236,[",12345678],["580.65.06","13.580'
    b'.65.06",13000],[8,[{"":[0,1]},{"GPU-????????-????-5???-????-????????????":16},"NVIDIA H100 80GB '
    b'HBM3",{"0000:??:00.0":16},{"":[0,1]},{"1????????????":10},"96.00.74.00.0D",9,"9.0",{"":[1,1]},81'
    b'559,true,0,["0-55,112-167","0-55,112-167","0-55,112-167","0-55,112-167","56-111,168-223","56-111'
    b',168-223","56-111,168-223","56-111,168-223"],["0","0","0","0","1","1","1","1"],[0,0,0,0,1,1,1,1]'
    b',[0],[5,16,5,16,5,[],[],[],[],[]],[4,[[[5,5,4,4,4,5],[0,4,8,12,16,1]],1,1,["0000:1c:00.0","0000:'
    b'1b:00.0","0000:1a:00.0","0000:1d:00.0","0000:1d:00.0","0000:1b:00.0"],2,26562,6]],18,[3,0,",0,0,'
    b"0],[[],[],[0],[0],[0],[0],[],-8,-2,0,0],[[],[],[],700000,700000,200000,700000,[],0],[[],2619,198"
    b'0,2619,0],[511,3,[2,[[4,32,4,32,4,32],[],[]]]],["251-253",[],[],[],[],[],[],[0]],[[],[],[],[],0,'
    b"[0],[0],[0]],[1,[],[],[],[],[1]],[[],[],0,0,[1],[1],[0],[1],[1],[1],0],[[1],[[null,null,null,nul"
    b"l,null,null,null,1],65]],null,[1,[[0.2,0.201,0.201,0.201,0.201,0.201,0.201,0.201],3,[1,[[],[],[]"
    b"]],[1,[[],[],[]]],[1,[[],[],[]]],[1,[[],[],[]]],[1,[0,0,0]],[1,[[],[],[]]],[1,[[],[],[],[],[],[]"
    b",[]]]]]]],[[8,[8,[-1,40,40,40,50,50]]],[8,[8,[-1,0,0,0,0,0]]],[8,[8,[-1,0,0,0,0,0]]],[8,[8,[-1,0"
    b',0,0,0,0]]]],[[16,["mlx5_0","mlx5_1","mlx5_3","mlx5_4","mlx5_5","mlx5_6"]],[16,{"0000:??:00.?":1'
    b'6}],[16,[8,["PXB","NODE","NODE","NODE","SYS","SYS"]]],[16,[16,["X","PIX","NODE","NODE","NODE","N'
    b'ODE"]]],[16,[{"":[0,1]},1,"ACTIVE","LinkUp",200,"Ethernet",[],[],[]]]],[[1,[8,{"0000:??:00.0":16'
    b'}]]],["1.1",["NVML_ERROR_NOT_SUPPORTED","not in this driver\'s version of the call","NVML_ERROR_F'
    b'UNCTION_NOT_FOUND","driver 550.54.15 has no such counters (they came with 575)","NVML_ERROR_INVA'
    b'LID_ARGUMENT","the chip has no such limit"],[null,null,"health","run-1","node-1",235,[",12345678'
    b'],["550.54.15","12.550.54.15",12040],[8,[{"":[0,1]},{"GPU-????????-????-5???-????-????????????":'
    b'16},"NVIDIA H100 80GB HBM3",{"0000:??:00.0":16},{"":[0,1]},{"1????????????":10},"96.00.74.00.0D"'
    b',9,"9.0",{"":[1,1]},81559,true,0,["0-55,112-167","0-55,112-167","0-55,112-167","0-55,112-167","5'
    b'6-111,168-223","56-111,168-223","56-111,168-223","56-111,168-223"],["0","0","0","0","1","1","1",'
    b'"1"],[0,0,0,0,1,1,1,1],[0],[5,16,5,16,5,[],[],[],[],[]],[4,[[[5,5,4,4,4,5],[0,4,8,12,16,1]],1,1,'
    b'["0000:1c:00.0","0000:1b:00.0","0000:1a:00.0","0000:1d:00.0","0000:1d:00.0","0000:1b:00.0"],2,26'
    b'562,6]],18,[3,0,",0,0,[1]],[[],[],[0],[0],[0],[0],[2],-8,-2,0,0],[[],[],[],700000,700000,200000,'
    b"700000,[],0],[[],2619,1980,2619,0],[511,3,[2,[[4,32,4,32,4,32],[],[]]]],[[3],[],[],[3],[3],[3],["
    b"],[0]],[[],[],[],[],0,[4],[4],[4]],[1,[],[],[],[],[2]],[[],[],0,0,[2],[2],[0],[2],[2],[2],[4]],["
    b'[2],[[null,null,null,null,null,1,null,null],116]],null,[1,[{"":1000},3,[1,[[],[],[]]],[1,[[],[],'
    b"[]]],[1,[[],[],[]]],[1,[[],[],[]]],[1,[0,0,0]],[1,[[],[],[]]],[1,[[],[],[3],[3],[3],[],[]]]]]]],"
    b"[[8,[8,[-1,40,40,40,50,50]]],[8,[8,[-1,0,0,0,0,0]]],[8,[8,[-1,0,0,0,0,0]]],[8,[8,[-1,0,0,0,0,0]]"
    b']],[[16,["mlx5_0","mlx5_1","mlx5_3","mlx5_4","mlx5_5","mlx5_6"]],[16,{"0000:??:00.?":16}],[16,[8'
    b',["PXB","NODE","NODE","NODE","SYS","SYS"]]],[16,[16,["X","PIX","NODE","NODE","NODE","NODE"]]],[1'
    b'6,[{"":[0,1]},1,"ACTIVE","LinkUp",200,"Ethernet",[],[],[]]]],[[1,[8,{"0000:??:00.0":16}]]],[32,['
    b'"pmbus",["power1","power1","power1","power1","power2","power2"],["pin","pin","pin","pin","pout1"'
    b',"pout1","pout1","pout1","vin","vin","vin","vin","vout1","vout1","vout1","vout1","iin","iin","ii'
    b'n","iin","iout1","iout1","iout1","iout1",null,null,null,null,null,null,null,null],[],0,[[5],[5],'
    b"[5],[5],[5],[5],[5],[5],180000,180000,180000,180000,11000,11000,11000,11000,[5],[5],[5],[5],[5],"
    b"[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5]],[3300000000,3300000000,3300000000,3300000000,300000"
    b"0000,3000000000,3000000000,3000000000,264000,264000,264000,264000,13000,13000,13000,13000,16000,"
    b"16000,16000,16000,250000,250000,250000,250000,[5],[5],[5],[5],65000,65000,65000,65000]]]]]"
)
