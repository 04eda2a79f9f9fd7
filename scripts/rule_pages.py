"""The documentation page of each rule, from the rule's own module; `pages.py` writes them.

What a rule does comes from docstrings, why it refuses from the sentences in its source, and who
uses it from the pipeline's table.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
import textwrap
from collections.abc import Iterator
from types import ModuleType

import onnx_ir as ir

from mobius.dtypes import short_name
from mobius.pipeline import plan_for
from mobius.quantization import QuantizationConfig
from mobius.roles import Role
from mobius.stage import Target
from mobius_eps.builtin import BUILTIN_EPS
from mobius_ir_rules import Rule, fusion, lowering

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def modules() -> Iterator[ModuleType]:
    """Yield the modules that define rules, fusions first, by name."""
    for package in (fusion, lowering):
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            if rules(module):
                yield module


def rules(module: ModuleType) -> list[type[Rule]]:
    """Return the rules that the module defines, in the order of its source."""
    found = [
        each
        for each in vars(module).values()
        if inspect.isclass(each)
        and issubclass(each, Rule)
        and each.__module__ == module.__name__
        and not inspect.isabstract(each)
    ]
    return sorted(found, key=lambda each: inspect.getsourcelines(each)[1])


def factories(module: ModuleType) -> list[str]:
    """Return the names of the functions that make the module's rules."""
    return [
        name
        for name, each in vars(module).items()
        if name.endswith("_rules") and getattr(each, "__module__", "") == module.__name__
    ]


def sentences(module: ModuleType) -> list[str]:
    """Return the reasons of the module's refusals, `...` standing for what was found."""
    found: dict[str, None] = {}
    for source in (module, *_private_siblings(module)):
        for node in ast.walk(ast.parse(inspect.getsource(source))):
            if isinstance(node, ast.Call) and _is_refuse(node.func) and node.args:
                sentence = _text(node.args[0])
                if sentence is not None:
                    found.setdefault(sentence)
    return list(found)


def _is_refuse(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("refuse", "RefusedError")


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "..." for each in node.values]
        return "".join(map(str, parts))
    return None


def _private_siblings(module: ModuleType) -> list[ModuleType]:
    """Return the modules beside this one that it takes helpers from."""
    parent = module.__name__.rpartition(".")[0]
    names = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(parent)
    }
    siblings = [importlib.import_module(name) for name in sorted(names)]
    return [each for each in siblings if not rules(each)]


@dataclasses.dataclass
class Use:
    """Where the rules of a module are used.

    Attributes:
        stages: Names of the stages that run them, those where they come first in front.
        targets: `(ep, dtype)` of the decoder pipelines that have such a stage.
    """

    stages: dict[str, None] = dataclasses.field(default_factory=dict)
    targets: set[tuple[str, ir.DataType]] = dataclasses.field(default_factory=set)


@functools.cache
def uses() -> dict[str, Use]:
    """Return, for each module of rules, where the pipelines of the built-in targets use it."""
    homes = {name: module.__name__ for module in modules() for name in _names(module)}
    found: dict[str, Use] = collections.defaultdict(Use)
    for each in BUILTIN_EPS:
        dtypes = [dtype for dtype in DTYPES if dtype in each.dtypes]
        for dtype, quantization in itertools.product(dtypes, (None, QuantizationConfig())):
            target = Target(each, dtype, Role.DECODER, quantization=quantization)
            for stage in plan_for(target):
                for rule in getattr(stage.make(target), "rules", ()):
                    module = type(rule).__module__
                    # A rule that is asked about some nodes only has the name of the one in it.
                    use = found[module if module in homes.values() else homes[rule.name]]
                    use.stages.setdefault(stage.name)
                    use.targets.add((each.name, dtype))
    return found


def users(use: Use) -> list[str]:
    """Return `ep (dtypes)` for each EP in whose pipeline the rules are."""
    lines = []
    for ep in sorted({ep for ep, _ in use.targets}):
        dtypes = [short_name(dtype) for dtype in DTYPES if (ep, dtype) in use.targets]
        lines.append(f"{ep} ({', '.join(dtypes)})")
    return lines


def page(module: ModuleType) -> str:
    """Return the page of a module's rules."""
    classes = rules(module)
    names = _names(module)
    lines = [f"# {', '.join(names)}", "", inspect.cleandoc(module.__doc__ or ""), ""]
    for each in classes:
        if each.__doc__:
            lines += [f"**{each.__name__}.** {inspect.cleandoc(each.__doc__)}", ""]
    made_by = ", ".join(f"`{module.__name__}.{name}()`" for name in factories(module))
    used_by = users(uses().get(module.__name__, Use()))
    lines += [
        "## Use",
        "",
        f"Made by {made_by}.",
        "",
        "In the decoder pipeline of: " + ("; ".join(used_by) or "no built-in target") + ".",
        "",
        "## Left alone, with the reason",
        "",
        *(textwrap.fill(f"* {each}", 100, subsequent_indent="  ") for each in sentences(module)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _names(module: ModuleType) -> list[str]:
    return [each().name or each.__name__ for each in rules(module) if _constructs(each)]


def file_name(module: ModuleType) -> str:
    """Return the name of the page of a module."""
    kind, name = module.__name__.split(".")[-2:]
    return f"{kind}_{name}.md"


def _constructs(rule: type[Rule]) -> bool:
    required = [
        each
        for each in inspect.signature(rule).parameters.values()
        if each.default is inspect.Parameter.empty
        and each.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    return not required


def pages() -> dict[str, str]:
    """Return file names and contents, the index among them."""
    written = {file_name(module): page(module) for module in modules()}
    index = ["# Rules", ""]
    for name, text in written.items():
        index.append(f"* [{text.splitlines()[0].removeprefix('# ')}]({name})")
    written["index.md"] = "\n".join(index) + "\n"
    return written
