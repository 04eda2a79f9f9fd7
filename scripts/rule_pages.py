"""Write a documentation page for each rule: docs/rules/<rule>.md, from the rule's own module.

    python scripts/rule_pages.py           write the pages
    python scripts/rule_pages.py --check   fail where a page is missing or out of date

What a rule does comes from docstrings, why it refuses from the sentences in its source, and who
uses it from the pipeline's table.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import onnx_ir as ir

import mobius
from mobius.lowerings import FUSED_MAT_MUL, LOWERINGS, Lowering
from mobius.pipeline import plan
from mobius.roles import Role
from mobius.stage import Target
from mobius_ir_rules import Rule, fusion, lowering

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "rules"
DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
SHORT = {ir.DataType.FLOAT: "f32", ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16"}


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


def users(names: Iterable[str]) -> list[str]:
    """Return `ep (dtypes)` for each EP whose pipeline has a stage of one of the names."""
    wanted = set(names)
    lines = []
    for ep in sorted(mobius.ep_registry):
        dtypes = [
            SHORT[dtype]
            for dtype in DTYPES
            if dtype in mobius.get_ep(ep).dtypes
            and any(stage.name in wanted for stage in plan(ep, dtype))
        ]
        if dtypes:
            lines.append(f"{ep} ({', '.join(dtypes)})")
    return lines


def page(module: ModuleType) -> str:
    """Return the page of a module's rules."""
    classes = rules(module)
    names = [each().name or each.__name__ for each in classes if _constructs(each)]
    stage_names = {*names, *_lowering_stages(module)}
    lines = [f"# {', '.join(names)}", "", inspect.cleandoc(module.__doc__ or ""), ""]
    for each in classes:
        if each.__doc__:
            lines += [f"**{each.__name__}.** {inspect.cleandoc(each.__doc__)}", ""]
    made_by = ", ".join(f"`{module.__name__}.{name}()`" for name in factories(module))
    used_by = users(stage_names)
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


def _lowering_stages(module: ModuleType) -> list[str]:
    """Return the stages whose rules are the module's: those are called after an operator."""
    if not module.__name__.startswith(f"{lowering.__name__}."):
        return []
    rows = (FUSED_MAT_MUL, *LOWERINGS)
    return [each.stage_name for each in rows if module.__name__ in _homes(each)]


@functools.cache
def _homes(row: Lowering) -> set[str]:
    """Return the modules of the rules that a row makes for some built-in target."""
    targets = [
        Target(mobius.get_ep(ep), dtype, Role.DECODER)
        for ep in mobius.ep_registry
        for dtype in DTYPES
    ]
    return {type(rule).__module__ for target in targets for rule in row.rules(target)}


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
    written = {}
    for module in modules():
        kind, name = module.__name__.split(".")[-2:]
        written[f"{kind}_{name}.md"] = page(module)
    index = ["# Rules", ""]
    for name, text in written.items():
        index.append(f"* [{text.splitlines()[0].removeprefix('# ')}]({name})")
    written["index.md"] = "\n".join(index) + "\n"
    return written


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    written = pages()
    stale = {path.name for path in FOLDER.glob("*.md")} - set(written)
    old = [
        name
        for name, text in written.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != text
    ]
    if options.check:
        if old or stale:
            print(f"out of date: {sorted([*old, *stale])}; run {Path(__file__).name}")
        return int(bool(old or stale))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).unlink()
    for name in old:
        (FOLDER / name).write_text(written[name], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
