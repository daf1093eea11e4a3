"""Reading the package's own source: a function's lines, its blank form, and the imports it needs.

Nothing is imported to be read. A partial blank is marked in the source by a pair of comments on lines of their own,
`# exercise 4.5: blank` and `# exercise 4.5: end`; without marks the whole body is blanked.
"""

from __future__ import annotations

import ast
import functools
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from minillm.course.exercise import Target

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Code:
    """One function of the package: its lines, dedented, and its node in its module's tree."""

    target: Target
    node: ast.FunctionDef
    lines: tuple[str, ...]

    @property
    def head(self) -> list[str]:
        """Decorators, signature and docstring."""
        return list(self.lines[: self._body_line])

    @property
    def body(self) -> list[str]:
        return list(self.lines[self._body_line :])

    @property
    def first_line(self) -> int:
        decorators = [d.lineno for d in self.node.decorator_list]
        return min([self.node.lineno, *decorators])

    @property
    def _body_line(self) -> int:
        """How many lines stand before the first statement that is not the docstring."""
        return _body_start(self.node) - self.first_line


def _body_start(node: ast.AST) -> int:
    """The line after the docstring, or that of the first statement if there is none."""
    first = node.body[0]
    return first.lineno if ast.get_docstring(node) is None else first.end_lineno + 1


def body_lines(node: ast.AST, lines: list[str]) -> list[str]:
    """The body of a function out of its file's lines, without the docstring."""
    return lines[_body_start(node) - 1 : node.end_lineno]


@functools.cache
def _module(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text, ast.parse(text)


def read(target: Target) -> Code:
    """The source of a target. Raises KeyError for a name that its module does not define."""
    text, tree = _module(target.source_path())
    node = find(tree, target.qualname)
    if node is None:
        raise KeyError(f"{target} is not defined in its module")
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno])).splitlines()
    return Code(target, node, tuple(lines))


def find(tree: ast.Module, qualname: str) -> ast.FunctionDef | None:
    """The node of `function` or `Class.method` in a tree."""
    node: ast.AST | None = tree
    for name in qualname.split("."):
        node = next((n for n in node.body if isinstance(n, DEFINITIONS) and n.name == name), None)
        if node is None:
            return None
    return node


def blank(code: Code, exercise_id: str) -> list[str]:
    """The function's lines with its body, or the marked part of it, replaced by NotImplementedError."""
    raising = f'raise NotImplementedError("exercise {exercise_id}")'
    marks = [i for i, line in enumerate(code.lines) if line.strip().startswith(f"# exercise {exercise_id}: ")]
    if not marks:
        return [*code.head, "    " + raising]
    begin, end = marks
    indent = code.lines[begin][: -len(code.lines[begin].lstrip())]
    return [*code.lines[:begin], indent + raising, *code.lines[end + 1 :]]


def without_marks(code: Code) -> list[str]:
    """The function's lines as they are, but for the comments that mark a partial blank."""
    return [line for line in code.lines if not line.strip().startswith("# exercise ")]


def answer_lines(code: Code, exercise_id: str) -> int:
    """Lines of code that the reader has to write: no blank lines, no comments."""
    marks = [i for i, line in enumerate(code.lines) if line.strip().startswith(f"# exercise {exercise_id}: ")]
    part = code.lines[marks[0] + 1 : marks[1]] if marks else code.body
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in part)


@dataclass
class Imports:
    """Import statements of a generated file: modules, and names out of modules."""

    modules: set[tuple[str, str | None]] = field(default_factory=set)
    names: dict[str, set[tuple[str, str | None]]] = field(default_factory=dict)

    def add_name(self, module: str, name: str, alias: str | None = None) -> None:
        self.names.setdefault(module, set()).add((name, alias))

    def lines(self) -> list[str]:
        """Grouped and sorted as ruff's isort rule wants them."""
        groups: dict[int, tuple[list[str], list[str]]] = {}
        for module, alias in sorted(self.modules):
            plain = f"import {module} as {alias}" if alias else f"import {module}"
            groups.setdefault(_group(module), ([], []))[0].append(plain)
        for module, names in sorted(self.names.items()):
            shown = ", ".join(name + (f" as {alias}" if alias else "") for name, alias in sorted(names, key=_by_kind))
            groups.setdefault(_group(module), ([], []))[1].append(f"from {module} import {shown}")
        lines: list[str] = []
        for number in sorted(groups):
            plain, named = groups[number]
            lines += [*plain, *named, ""]
        return lines


def _group(module: str) -> int:
    top = module.partition(".")[0]
    if module.startswith("minillm.kernels"):  # kernels/ stands beside minillm/, so that ruff does not find it inside
        return 1
    return 0 if top in sys.stdlib_module_names else 2 if top == "minillm" else 1


def _by_kind(name: tuple[str, str | None]) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name[0].isupper() and len(name[0]) > 1 else 1 if name[0][0].isupper() else 2, name[0])


def needed_imports(code: Code, defined: set[str], imports: Imports) -> None:
    """Add to `imports` what the function's names come from, but for those `defined` in the generated file itself."""
    _, tree = _module(code.target.source_path())
    used = {node.id for node in ast.walk(code.node) if isinstance(node, ast.Name)} - defined
    if code.target.owner:
        package, _, module = code.target.module.rpartition(".")
        if package:
            imports.add_name(package, module)
        else:
            imports.modules.add((module, None))
    for statement in _imports_and_definitions(tree):
        if isinstance(statement, ast.Import):
            imports.modules |= {(a.name, a.asname) for a in statement.names
                                if (a.asname or a.name.partition(".")[0]) in used}
        elif isinstance(statement, ast.ImportFrom):
            for a in statement.names:
                if (a.asname or a.name) in used:
                    imports.add_name(statement.module, a.name, a.asname)
        else:
            for name in _defined_names(statement) & used:
                imports.add_name(code.target.module, name)


def _imports_and_definitions(tree: ast.Module) -> list[ast.stmt]:
    """A module's statements, with those under `if TYPE_CHECKING:` among them."""
    statements: list[ast.stmt] = []
    for statement in tree.body:
        statements += statement.body if isinstance(statement, ast.If) else [statement]
    return statements


def _defined_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def cut(text: str, qualname: str) -> str | None:
    """The lines of one function or class in a text; None if it has none. Raises SyntaxError if it is no Python."""
    node = find(ast.parse(text), qualname)
    if node is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
