"""`verify(a, b)`: run two models or packages on the same random inputs and compare what they give.

Inputs are made once, rounded to the coarser of the two models' dtypes, so that both get the same
numbers. A decoder with a cache runs on a prompt and on one token after a filled cache, and both
again with prompts that end in padding, where only the results of real tokens count. Only one of
the two models is loaded at a time. Needs the extra `ort`.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius.compare import Difference, Tolerance, compare
from mobius.dims import Sizes, fitted, part_of
from mobius.dtypes import DTYPE_NAMES
from mobius.errors import VerifyError
from mobius.model_files import find_graphs, read_model_file
from mobius.ort import CPU, Array, Port, Session, open_session
from mobius.random_inputs import Scenario, coarsest, index_limits, random_inputs
from mobius.token_rows import has_last_alone, last_tokens, real_tokens

__all__ = ["TOLERANCES", "OutputDifference", "Verification", "VerifyOptions", "verify"]

TOLERANCES: Mapping[ir.DataType, Tolerance] = {
    ir.DataType.FLOAT: Tolerance(1e-4, 1e-4),
    ir.DataType.FLOAT16: Tolerance(1e-2, 1e-2),
    ir.DataType.BFLOAT16: Tolerance(1e-1, 1e-1),
}
"""For the coarsest float type in either model: some 10 to 1000 of its steps, which is what another
order of additions makes of a few dozen layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """How to compare.

    Attributes:
        batch: Number of rows.
        sequence: Number of tokens of a prompt.
        past: Number of tokens in the cache of the step after it; `None` as many as in the prompt.
        dims: Sizes of dimensions by name, where the models leave them open.
        below: For integer inputs, the number that they stay below; otherwise the size of the table
            that they index, or 2.
        padding: Run padded prompts too.
        seed: Seed of the first run.
        runs: Number of runs with different inputs.
        absolute: Tolerance; `None` takes that of the models' dtype.
        relative: Tolerance, relative to the number in A; `None` as above.
        cross_dtype: Let the two models be of different float types.
        allow_nan: Let numbers be NaN in both.
        providers: Execution providers by ONNX Runtime's names.
    """

    batch: int = 2
    sequence: int = 7
    past: int | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    below: Mapping[str, int] = dataclasses.field(default_factory=dict)
    padding: bool = True
    seed: int = 0
    runs: int = 1
    absolute: float | None = None
    relative: float | None = None
    cross_dtype: bool = False
    allow_nan: bool = False
    providers: Sequence[str] = (CPU,)


@dataclasses.dataclass(frozen=True)
class OutputDifference:
    """How one output differed in one run.

    Attributes:
        graph: Key of the graph.
        scenario: How it was run.
        seed: Seed of its inputs.
        output: Name of the output.
        difference: What was found.
    """

    graph: str
    scenario: str
    seed: int
    output: str
    difference: Difference


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        interface: How the inputs, outputs and graphs of the two differ, a sentence each.
        outputs: Every output of every run.
        tolerances: What was allowed for each graph.
        notes: What was compared in part only, a sentence each.
    """

    interface: tuple[str, ...]
    outputs: tuple[OutputDifference, ...]
    tolerances: Mapping[str, Tolerance]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the two have the same interface and gave the same numbers."""
        return not self.interface and all(not each.difference.problem for each in self.outputs)

    def worst(self) -> tuple[OutputDifference, ...]:
        """Return of each output the run in which it differed most, the worst output first."""
        found: dict[tuple[str, str], OutputDifference] = {}
        for each in sorted(self.outputs, key=_badness, reverse=True):
            found.setdefault((each.graph, each.output), each)
        return tuple(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {
            "same": self.same,
            "interface": list(self.interface),
            "notes": list(self.notes),
            "tolerances": {
                graph: dataclasses.asdict(tolerance) for graph, tolerance in self.tolerances.items()
            },
            "outputs": [
                {
                    "graph": each.graph,
                    "scenario": each.scenario,
                    "seed": each.seed,
                    "output": each.output,
                    **each.difference.to_dict(),
                }
                for each in self.outputs
            ],
        }


def verify(a: Path, b: Path, options: VerifyOptions | None = None) -> Verification:
    """Compare `b` with the reference `a`, each an `.onnx` file or the folder of a package.

    Raises:
        ModelFileError: if there is no model, or it lacks its weights.
        VerifyError: if the two cannot be given the same inputs, or have no output in common.
        OrtMissingError: if ONNX Runtime is not installed.
        OrtError: if ONNX Runtime does not run one of them.
    """
    options = options or VerifyOptions()
    _check(options)
    graphs_a, graphs_b = find_graphs(a), find_graphs(b)
    if len(graphs_a) == len(graphs_b) == 1:  # whatever the two are called
        graphs_b = dict(zip(graphs_a, graphs_b.values(), strict=True))
    interface = _only_in_one("graph", graphs_a, graphs_b)
    outputs: list[OutputDifference] = []
    tolerances: dict[str, Tolerance] = {}
    notes: list[str] = []
    for key in (key for key in graphs_a if key in graphs_b):
        pair = _Pair(key, graphs_a[key], graphs_b[key], options)
        outputs += pair.run()
        prefix = "" if len(graphs_a) == 1 else f"{key}: "
        interface += [prefix + text for text in pair.interface]
        notes += [prefix + text for text in pair.notes]
        tolerances[key] = pair.tolerance
    if not outputs:
        raise VerifyError(
            "The two have nothing in common that could be compared. " + " ".join(interface)
        )
    return Verification(tuple(interface), tuple(outputs), tolerances, tuple(notes))


def _check(options: VerifyOptions) -> None:
    for name in ("batch", "sequence", "runs"):
        if getattr(options, name) < 1:
            raise VerifyError(f"{name} is {getattr(options, name)}; it must be at least 1.")
    if options.past is not None and options.past < 0:
        raise VerifyError(f"past is {options.past}; it must not be negative.")
    for name in ("absolute", "relative"):
        value = getattr(options, name)
        if value is not None and not value >= 0:
            raise VerifyError(f"The {name} tolerance is {value}; it must not be negative.")


class _Pair:
    """Two graphs that are compared with each other.

    Attributes:
        interface: How their inputs and outputs differ; known after `run`.
        notes: What was compared in part only; known after `run`.
        tolerance: What is allowed.
    """

    def __init__(self, key: str, a: Path, b: Path, options: VerifyOptions) -> None:
        models = [read_model_file(path) for path in (a, b)]
        self._key = key
        self._paths = (a, b)
        self._options = options
        self._limits = {**_joined_limits(models), **options.below}
        dtypes = [dtype for model in models for dtype in _float_dtypes(model)]
        default = TOLERANCES[coarsest(dtypes or [ir.DataType.FLOAT])]
        self.tolerance = Tolerance(
            default.absolute if options.absolute is None else options.absolute,
            default.relative if options.relative is None else options.relative,
        )
        self.interface: list[str] = []
        self.notes: list[str] = []

    def run(self) -> list[OutputDifference]:
        """Run both and compare all that they have in common."""
        path_a, path_b = self._paths
        # The inputs of both must be known before either runs, and only one is to be in memory.
        ports_b = open_session(path_b, self._options.providers).inputs
        session = open_session(path_a, self._options.providers)
        ports = [session.inputs, ports_b]
        self._check_inputs(*ports)
        runs = [
            (dataclasses.replace(scenario, sizes=fitted(ports, scenario.sizes)), seed)
            for scenario in _scenarios(ports, self._options)
            for seed in range(self._options.seed, self._options.seed + self._options.runs)
        ]
        feeds = [
            random_inputs(ports, scenario, self._limits, np.random.default_rng(seed))
            for scenario, seed in runs
        ]
        results_a, outputs_a = [_run(session, feed) for feed in feeds], session.outputs
        del session
        gc.collect()
        session = open_session(path_b, self._options.providers)
        names_a, names_b = _names(outputs_a), _names(session.outputs)
        self.interface += _only_in_one("output", names_a, names_b)
        ports_of_b = {port.name: port for port in session.outputs}
        both = [(port, ports_of_b[port.name]) for port in outputs_a if port.name in ports_of_b]
        self.notes += [
            f"{a.name}: {'A' if has_last_alone(a, b) else 'B'} has each row's last token only; "
            "that token was compared."
            for a, b in both
            if has_last_alone(a, b) or has_last_alone(b, a)
        ]
        found: list[OutputDifference] = []
        for (scenario, seed), feed, result_a in zip(runs, feeds, results_a, strict=True):
            result_b = _run(session, feed)
            for port, other in both:
                value_a, value_b = result_a[port.name], result_b[port.name]
                if has_last_alone(port, other):
                    value_b = last_tokens(value_b, scenario)
                elif has_last_alone(other, port):
                    value_a = last_tokens(value_a, scenario)
                difference = compare(
                    value_a,
                    value_b,
                    self.tolerance,
                    real=real_tokens(port, value_a.shape, scenario),
                    other_dtype=self._options.cross_dtype,
                    allow_nan=self._options.allow_nan,
                )
                found.append(
                    OutputDifference(self._key, scenario.name, seed, port.name, difference)
                )
        return found

    def _check_inputs(self, ports_a: Sequence[Port], ports_b: Sequence[Port]) -> None:
        self.interface += _only_in_one("input", _names(ports_a), _names(ports_b))
        dtypes = {port.name: port.dtype for port in ports_b}
        other = [port for port in ports_a if dtypes.get(port.name, port.dtype) is not port.dtype]
        if other and not self._options.cross_dtype:
            port = other[0]
            raise VerifyError(
                f"Input {port.name!r} is {port.dtype.name} in A and {dtypes[port.name].name} in "
                "B. To compare models of different float types, say so (cross_dtype=True, "
                "--cross-dtype on the command line)."
            )


def _run(session: Session, feed: Mapping[str, Array]) -> dict[str, Array]:
    return session.run(
        {port.name: feed[port.name].astype(port.dtype.numpy()) for port in session.inputs}
    )


def _scenarios(models: Sequence[Sequence[Port]], options: VerifyOptions) -> list[Scenario]:
    inputs = [port for ports in models for port in ports]
    parts = {part_of(port, axis) for port in inputs for axis in range(len(port.shape))}
    has_mask = any(port.name.endswith("attention_mask") for port in inputs)
    prompt = Sizes(options.batch, options.sequence, 0, options.dims)
    cached = "past" in parts
    padded = has_mask and options.padding and options.batch > 1
    scenarios = [Scenario("prompt" if cached else "run", prompt)]
    if padded and options.sequence > 1:
        scenarios.append(Scenario("padded prompt" if cached else "padded", prompt, padded=True))
    if cached:
        past = options.sequence if options.past is None else options.past
        step = Sizes(options.batch, 1, past, options.dims)
        scenarios.append(Scenario("next token", step))
        if padded and past > 1:
            scenarios.append(Scenario("next token after padding", step, padded=True))
    return scenarios


def _joined_limits(models: Iterable[ir.Model]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for model in models:
        for name, limit in index_limits(model).items():
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def _float_dtypes(model: ir.Model) -> set[ir.DataType]:
    values = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    return {value.dtype for value in values if value.dtype is not None} & DTYPE_NAMES.keys()


def _names(ports: Iterable[Port]) -> list[str]:
    return [port.name for port in ports]


def _only_in_one(what: str, a: Iterable[str], b: Iterable[str]) -> list[str]:
    in_a, in_b = list(a), list(b)
    return [
        *(f"Only A has the {what} {name!r}." for name in in_a if name not in in_b),
        *(f"Only B has the {what} {name!r}." for name in in_b if name not in in_a),
    ]


def _badness(each: OutputDifference) -> tuple[bool, float]:
    largest = each.difference.max_abs
    return each.difference.problem is not None, -1.0 if largest is None else largest
