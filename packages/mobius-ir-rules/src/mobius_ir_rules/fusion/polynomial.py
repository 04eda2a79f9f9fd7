"""`polynomial(value, unknowns)`: elementwise arithmetic on a graph -> its coefficients.

The same formula is exported in many shapes: operands in any order, constants multiplied out,
`x * x * x` or `Pow(x, 3)`, `Div` by 2 or `Mul` by 0.5. As polynomials in its unknowns all of them
are equal, and a constant that is off is seen as a coefficient that is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.passes.constants import constant_array

Exponents = tuple[int, ...]
Polynomial = dict[Exponents, float]
"""Coefficients by the exponents of the unknowns: `{(1, 0): 0.5}` is half of the first one."""

_OPERATORS = ("Add", "Sub", "Mul", "Div", "Pow")
_DEPTH = 8
_DEGREE = 4


def polynomial(
    value: ir.Value | None, unknowns: Sequence[ir.Value], depth: int = _DEPTH
) -> Polynomial | None:
    """Return `value` as a polynomial in `unknowns`, `None` where it is anything else.

    Only Add, Sub, Mul, Div by a constant and Pow by a small constant integer are followed.
    """
    if value is None or depth == 0:
        return None
    if value in unknowns:
        return {tuple(int(value is unknown) for unknown in unknowns): 1.0}
    constant = scalar(value)
    if constant is not None:
        return {(0,) * len(unknowns): constant}
    node = value.producer()
    if node is None or node.domain != "" or len(node.inputs) != 2:
        return None
    left = polynomial(node.inputs[0], unknowns, depth - 1)
    right = polynomial(node.inputs[1], unknowns, depth - 1) if left is not None else None
    if left is None or right is None:
        return None
    return _combine(node.op_type, left, right)


def arithmetic(
    value: ir.Value | None, stops: Sequence[ir.Value], depth: int = _DEPTH
) -> Iterator[ir.Node]:
    """Yield the nodes of the formula that ends in `value`, down to `stops` and constants."""
    if value is None or depth == 0 or value in stops or scalar(value) is not None:
        return
    node = value.producer()
    if node is None or node.domain != "" or node.op_type not in _OPERATORS:
        return
    yield node
    for operand in node.inputs:
        yield from arithmetic(operand, stops, depth - 1)


def scalar(value: ir.Value | None) -> float | None:
    """Return a floating-point or integer constant of one element, `None` for all else."""
    array = constant_array(value)
    if array is None or array.size != 1 or array.dtype == np.bool_:
        return None
    return float(array.reshape(()))


def matches(found: Mapping[Exponents, float], wanted: Polynomial, tolerance: float) -> bool:
    """Return whether the coefficients are those wanted, to a relative tolerance."""
    return found.keys() == wanted.keys() and all(
        abs(found[key] - wanted[key]) <= tolerance * abs(wanted[key]) for key in wanted
    )


def describe(terms: Mapping[Exponents, float], names: Sequence[str]) -> str:
    """Return words for a reason: `0.797885*x + 0.0356774*x^3`."""
    words = []
    for exponents, coefficient in sorted(terms.items(), key=lambda term: term[0]):
        factors = [
            name if exponent == 1 else f"{name}^{exponent}"
            for name, exponent in zip(names, exponents, strict=True)
            if exponent
        ]
        words.append("*".join([f"{coefficient:.6g}", *factors]))
    return " + ".join(words) or "0"


def _combine(op_type: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    match op_type:
        case "Add":
            return _sum(left, right, 1.0)
        case "Sub":
            return _sum(left, right, -1.0)
        case "Mul":
            return _product(left, right)
        case "Div":
            divisor = _constant(right)
            return None if not divisor else {key: c / divisor for key, c in left.items()}
        case "Pow":
            return _power(left, _constant(right))
    return None


def _sum(left: Polynomial, right: Polynomial, sign: float) -> Polynomial:
    keys = [*left, *(key for key in right if key not in left)]
    return {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in keys}


def _product(left: Polynomial, right: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            key = tuple(i + j for i, j in zip(first, second, strict=True))
            if sum(key) > _DEGREE:
                return None
            result[key] = result.get(key, 0.0) + a * b
    return result


def _power(base: Polynomial, exponent: float | None) -> Polynomial | None:
    if exponent is None or exponent not in range(1, _DEGREE + 1):
        return None
    result: Polynomial | None = base
    for _ in range(int(exponent) - 1):
        result = _product(result, base) if result is not None else None
    return result


def _constant(terms: Polynomial) -> float | None:
    """Return the value of a polynomial without unknowns."""
    return None if any(any(key) for key in terms) else sum(terms.values())
