"""Planted bugs: their notation, their compilation into the running process, and the number of seeds to find each.

A file ``PART.diff`` has a block for each bug, separated by empty lines. A block of lines with ``#`` is a comment:

    quorum_off_by_one: half of an even group counts as a quorum
    ringlog.kernel.operations.gates:quorum, 100
    - return count // 2 + 1
    + return (count + 1) // 2

The first line has the bug's name and meaning. The second names the function (module and qualified name), the number of
seeds within which the bug must be found, and their profile unless it is ``small``. The old and the new code follow,
after the sign and a space.

Both are parsed and compared as syntax trees, so comments, line breaks and quotes make no difference. The code is one
expression, or consecutive statements of one block. It must occur exactly once in the function.

The changed tree is compiled, and every function of the module whose code differs gets the new code in place. So all
references to it run the bug. ``planted`` restores the old code afterwards. Each call of an outer function creates its
nested functions again. A nested function from an earlier call would not change, so such a bug is rejected.
"""

from __future__ import annotations

import ast
import gc
import inspect
import multiprocessing
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ringlog.kernel.values import Value
from ringlog_sim import prefix
from ringlog_sim.runner.run import RunReport
from ringlog_sim.runner.search import prepare_worker, run_seed

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Mutant(Value):
    """A planted bug. In the function ``target`` (``module:Class.name``), the code ``old`` becomes ``new``.

    ``bug``: the wrong behavior in a few words. ``seeds``: the bug must be found within this number of seeds of
    ``profile``.
    """

    name: str
    target: str
    old: str
    new: str
    bug: str
    seeds: int
    profile: str = "small"

    @property
    def module(self) -> str:
        """Return the name of the changed module."""
        return self.target.partition(":")[0]


class DoesNotApply(Exception):
    """The function does not have the old code exactly once, or the change has no effect."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the body with the bug. Raise DoesNotApply."""
    module = import_module(mutant.module)
    changes = _changes(mutant, module)
    good = [(function, function.__code__) for function, _ in changes]

    @contextmanager
    def taken_back() -> Iterator[None]:
        _put(good)
        try:
            yield
        finally:
            _put(changes)

    try:
        _put(changes)
        prefix.around = taken_back
        yield
    finally:
        prefix.around = nullcontext
        _put(good)


def changed_tree(mutant: Mutant, source: str) -> ast.Module:
    """Return the syntax tree of a module with this source, with the bug. Raise DoesNotApply."""
    tree = ast.parse(source)
    old, new = _parsed(mutant, mutant.old), _parsed(mutant, mutant.new)
    places = list(_places(_function(mutant, tree), old, new))
    if len(places) != 1:
        raise DoesNotApply(f"{mutant.name}: {mutant.target} contains the code {len(places)} times: {mutant.old!r}")
    places[0]()
    return tree


def _parsed(mutant: Mutant, code: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(code)).body
    except SyntaxError as error:
        raise DoesNotApply(f"{mutant.name}: neither an expression nor statements: {code!r}") from error


def _function(mutant: Mutant, tree: ast.Module) -> ast.AST:
    found: ast.AST = tree
    for name in mutant.target.partition(":")[2].split("."):
        named = [one for one in _inner(found) if one.name == name]
        if len(named) != 1:
            raise DoesNotApply(f"{mutant.name}: {len(named)} functions are named {mutant.target}")
        found = named[0]
    return found


def _inner(scope: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, _SCOPES):
            yield child
        else:
            yield from _inner(child)


def _places(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> Iterator[Callable[[], None]]:
    """Yield, for each occurrence of the old code, a function that replaces it."""
    one, other = _single_expression(old), _single_expression(new)
    for node in ast.walk(scope):
        for field, value in ast.iter_fields(node):
            if one is not None and other is not None:
                if isinstance(value, list):
                    yield from (partial(_put_in, value, at, 1, [other]) for at in _found([one], value))
                elif _equal([one], [value]):
                    yield partial(setattr, node, field, _at(value, other))
            elif isinstance(value, list):
                yield from (partial(_put_in, value, at, len(old), new) for at in _found(old, value))


def _single_expression(code: list[ast.stmt]) -> ast.expr | None:
    return code[0].value if len(code) == 1 and isinstance(code[0], ast.Expr) else None


def _found(some: Sequence[ast.AST], block: Sequence[object]) -> Iterator[int]:
    return (at for at in range(len(block) - len(some) + 1) if some and _equal(some, block[at : at + len(some)]))


def _equal(some: Sequence[ast.AST], others: Sequence[object]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(isinstance(other, type(one)) and ast.dump(one) == ast.dump(other) for one, other in pairs)


def _put_in(block: list[ast.AST], at: int, count: int, new: Sequence[ast.AST]) -> None:
    block[at : at + count] = [_at(block[at], node) for node in new]


def _at(place: ast.AST, node: ast.AST) -> ast.AST:
    """Return the node with the position of the other one, so that a traceback shows the replaced line."""
    for inner in ast.walk(node):
        ast.copy_location(inner, place)
    return node


def _put(codes: list[tuple[FunctionType, CodeType]]) -> None:
    for function, code in codes:
        function.__code__ = code


def _changes(mutant: Mutant, module: ModuleType) -> list[tuple[FunctionType, CodeType]]:
    tree = changed_tree(mutant, inspect.getsource(module))
    scratch = ModuleType(module.__name__)
    scratch.__dict__.update({"__file__": module.__file__, "__package__": module.__package__})
    name = f"{module.__name__}.mutant"
    sys.modules[name] = scratch
    scratch.__dict__["__name__"] = name
    try:
        exec(compile(tree, module.__file__ or name, "exec"), scratch.__dict__)
    finally:
        del sys.modules[name]
    present, changed = _functions(module), _functions(scratch)
    changes = [
        (function, changed[where].__code__)
        for where, function in sorted(present.items())
        if where in changed and not _same(function.__code__, changed[where].__code__)
    ]
    if not changes:
        raise DoesNotApply(f"{mutant.name}: the bug changes no function of {mutant.module}")
    left = _left_behind(changes)
    if left:
        raise DoesNotApply(f"{mutant.name}: {left} was created by an earlier call, so the bug would not change it")
    return changes


def _left_behind(changes: list[tuple[FunctionType, CodeType]]) -> str:
    """Return the name of an existing nested function that would change if it were created now, or empty text."""
    inner = [old for function, code in changes for old in _changed_within(function.__code__, code)]
    taken = {id(function) for function, _ in changes}
    for user in gc.get_referrers(*inner) if inner else ():
        if isinstance(user, FunctionType) and user.__code__ in inner and id(user) not in taken:
            return user.__qualname__
    return ""


def _changed_within(old: CodeType, new: CodeType) -> Iterator[CodeType]:
    """Yield nested functions with changed code, except for comprehensions, which end with their evaluation."""
    codes = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    for one, other in zip(*codes, strict=False):
        if one.co_name == other.co_name and not _same(one, other):
            if one.co_name not in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
                yield one
            yield from _changed_within(one, other)


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """Return the module's own functions and methods by qualified name, without their wrappers."""
    found: dict[str, FunctionType] = {}

    def take(where: str, value: Any) -> None:
        value = getattr(value, "__func__", value)
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, cached_property):
            value = value.func
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__module__ == module.__dict__["__name__"]:
            found[where] = value

    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__dict__["__name__"]:
            for inner, member in vars(value).items():
                take(f"{name}.{inner}", member)
        else:
            take(name, value)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """Return True if two code objects are equal except for line numbers."""
    if one.co_code != other.co_code or one.co_names != other.co_names or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else type(a) is type(b) and a == b
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


FOLDER = Path(__file__).parent


@cache
def bugs_of(part: str) -> tuple[Mutant, ...]:
    """Return the planted bugs of a part, in order."""
    return read_bugs((FOLDER / f"{part}.diff").read_text(encoding="utf-8"))


def read_bugs(text: str) -> tuple[Mutant, ...]:
    """Return the planted bugs of a file. Raise ValueError for an invalid block."""
    blocks = (block.split("\n") for block in text.strip("\n").split("\n\n"))
    return tuple(_bug(block) for block in blocks if not all(line.startswith("#") for line in block))


def _bug(block: list[str]) -> Mutant:
    name, colon, bug = block[0].partition(": ")
    target, *numbers = block[1].split(", ") if len(block) > 1 else [""]
    count = sum(line.startswith("-") for line in block[2:])
    old, new = block[2 : 2 + count], block[2 + count :]
    is_whole = colon and ":" in target and 1 <= len(numbers) <= 2 and numbers[0].isdecimal() and old and new
    if not is_whole or any(line[:1] != "-" for line in old) or any(line[:1] != "+" for line in new):
        raise ValueError(f"no planted bug: {block}")
    return Mutant(name, target, _text(old), _text(new), bug, int(numbers[0]), *numbers[1:])


def _text(lines: list[str]) -> str:
    return "\n".join(line[2:] for line in lines)


FIRST_SEED = 1


class MutantMeasure(Value):
    """The result of a search. ``found``: number of seeds, None if not within the bound. ``rule``: the
    broken invariant.
    """

    mutant: Mutant
    found: int | None
    seed: int
    rule: str
    detail: str


def measure(mutant: Mutant) -> MutantMeasure:
    """Run seeds until one fails and does not fail without the bug. A run with too little activity is not a failure."""
    seeds = iter(range(FIRST_SEED, FIRST_SEED + mutant.seeds))
    while (report := _first_failure(mutant, seeds)) is not None:
        if not run_seed(report.seed, mutant.profile).rule:
            return MutantMeasure(mutant, report.seed - FIRST_SEED + 1, report.seed, report.rule, report.detail)
    return MutantMeasure(mutant, None, 0, "", "")


def _first_failure(mutant: Mutant, seeds: Iterator[int]) -> RunReport | None:
    with planted(mutant):
        reports = (run_seed(seed, mutant.profile) for seed in seeds)
        return next((report for report in reports if report.rule not in ("", "too_little")), None)


def measure_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[MutantMeasure]:
    """Yield the results of all bugs as they are found."""
    if jobs == 1:
        yield from map(measure, mutants)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, prepare_worker, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(measure, mutants)
