"""The body of LinearAttention in chunks against float64, as exact as token by token."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.passes import InlineFunctions

Array = npt.NDArray[Any]
Feed = dict[str, Array]
Random = np.random.Generator
BATCH, KEY, VALUE, TOKENS = 2, 16, 8, 200
RULES = ("linear", "gated", "delta", "gated_delta")
# Heads of queries, of keys, of states.
HEADS = {
    "alike": (3, 3, 3),
    "one key": (1, 1, 4),
    "shared": (2, 2, 4),
    "one query": (1, 3, 3),
    "many queries": (4, 2, 2),
    "many queries of one key": (4, 1, 2),
    "one state": (3, 1, 1),
}


@functools.cache
def body(
    rule: str, heads: tuple[int, int, int], past: bool = True, decay: int = 1
) -> onnxruntime.InferenceSession:
    """Return a session with one inlined call, any number of rows and tokens."""
    q_heads, k_heads, states = heads
    inputs = {
        "q": f"float[B,S,{q_heads * KEY}]",
        "k": f"float[B,S,{k_heads * KEY}]",
        "v": f"float[B,S,{states * VALUE}]",
        "p": f"float[B,{states},{KEY},{VALUE}]" if past else "",
        "g": f"float[B,S,{states * decay}]" if "gated" in rule else "",
        "b": f"float[B,S,{states}]" if "delta" in rule else "",
    }
    declared = ", ".join(f"{kind} {name}" for name, kind in inputs.items() if kind)
    arguments = ", ".join(name if kind else "" for name, kind in inputs.items())
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
        g ({declared}) => (float[B,S,{max(q_heads, states) * VALUE}] y,
                           float[B,{states},{KEY},{VALUE}] state) {{
            y, state = com.microsoft.LinearAttention
                <q_num_heads = {q_heads}, kv_num_heads = {states}, update_rule = "{rule}">
                ({arguments.rstrip(" ,")})
        }}"""
    )
    assert not AttachFunctions()(model).refusals
    InlineFunctions()(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def feed_of(rule: str, heads: tuple[int, int, int], tokens: int, seed: int = 0) -> Feed:
    random = np.random.default_rng(seed)
    q_heads, k_heads, states = heads
    key = random.standard_normal((BATCH, tokens, k_heads, KEY))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    feed = {
        "q": random.standard_normal((BATCH, tokens, q_heads * KEY)),
        "k": key.reshape(BATCH, tokens, k_heads * KEY),
        "v": random.standard_normal((BATCH, tokens, states * VALUE)),
        "p": random.standard_normal((BATCH, states, KEY, VALUE)),
        "g": -0.3 * np.abs(random.standard_normal((BATCH, tokens, states))),
        "b": random.random((BATCH, tokens, states)),
    }
    unused = {"g": "gated", "b": "delta"}
    return {
        name: array.astype(np.float32)
        for name, array in feed.items()
        if unused.get(name, "") in rule
    }


def exact(heads: tuple[int, int, int], feed: Feed) -> tuple[Array, Array]:
    """Return the output and the last state, token by token, in float64."""
    wide = {name: array.astype(np.float64) for name, array in feed.items()}
    _, tokens, _ = wide["q"].shape
    states = heads[2]

    def split(name: str, count: int, copies: int) -> Array:
        return np.repeat(wide[name].reshape(BATCH, tokens, count, -1), copies, axis=2)

    query = split("q", heads[0], max(1, states // heads[0])) / np.sqrt(KEY)
    key, value = split("k", heads[1], states // heads[1]), split("v", states, 1)
    state = wide.get("p", np.zeros((BATCH, states, KEY, VALUE)))
    outputs = np.zeros((BATCH, tokens, query.shape[2], VALUE))
    for token in range(tokens):
        if "g" in wide:
            state = np.exp(wide["g"][:, token, :, None, None]) * state
        new = value[:, token]
        if "b" in wide:
            known = np.einsum("bhk,bhkv->bhv", key[:, token], state)
            new = wide["b"][:, token, :, None] * (new - known)
        state = state + key[:, token, :, :, None] * new[:, :, None, :]
        read_by = np.repeat(state, query.shape[2] // states, axis=1)
        outputs[:, token] = np.einsum("bhk,bhkv->bhv", query[:, token], read_by)
    return outputs.reshape(BATCH, tokens, -1), state


def error(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("past", [True, False], ids=["past", "no past"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("rule", RULES)
def test_any_number_of_tokens(rule: str, heads: tuple[int, int, int], past: bool) -> None:
    """Chunks that are full, nearly full, of one token, and a session that has them in turn."""
    session = body(rule, heads, past)
    for tokens in (1, 2, 31, 32, 33, 63, 64, 65, TOKENS, 1):
        feed = feed_of(rule, heads, tokens)
        if not past:
            del feed["p"]
        for found, expected in zip(session.run(None, feed), exact(heads, feed), strict=True):
            assert found.shape == expected.shape
            assert error(found, expected) < 2e-6, tokens


@pytest.mark.parametrize("rule", RULES)
def test_no_tokens_leave_the_state(rule: str) -> None:
    heads = HEADS["alike"]
    feed = feed_of(rule, heads, 1)
    none = {name: array if name == "p" else array[:, :0] for name, array in feed.items()}
    output, state = body(rule, heads).run(None, none)
    assert output.shape == (BATCH, 0, 3 * VALUE)
    np.testing.assert_array_equal(state, feed["p"])


def one_key(feed: Feed, random: Random) -> None:
    """Every token has the same key, each overwrites what the one before wrote."""
    feed["k"][:] = feed["k"][:, :1]
    feed["b"][:], feed["g"][:] = 1, 0


def one_key_in_a_slow_decay(feed: Feed, random: Random) -> None:
    one_key(feed, random)
    feed["g"][:] = -1e-3


def keys_nearly_alike(feed: Feed, random: Random) -> None:
    one_key(feed, random)
    feed["k"] += 1e-3 * random.standard_normal(feed["k"].shape)


def one_key_and_its_opposite(feed: Feed, random: Random) -> None:
    one_key(feed, random)
    feed["k"][:, ::2] *= -1


def one_key_overshot(feed: Feed, random: Random) -> None:
    """beta = 1.5: each token leaves half of what it overwrites, with the other sign."""
    one_key(feed, random)
    feed["b"][:] = 1.5


def reflections(feed: Feed, random: Random) -> None:
    """beta = 2: nothing is ever forgotten, and nothing damps an error."""
    feed["b"][:], feed["g"][:] = 2, 0


def all_is_forgotten(feed: Feed, random: Random) -> None:
    feed["g"][:] = -1e4 * random.random(feed["g"].shape)


def some_tokens_forget_all(feed: Feed, random: Random) -> None:
    """Sums of decays reach -1e5, beside differences of 1e-3 that matter."""
    feed["g"][:] = np.where(random.random(feed["g"].shape) < 0.2, -1e4, -1e-3)


def minus_infinity(feed: Feed, random: Random) -> None:
    feed["g"][:] = np.where(random.random(feed["g"].shape) < 0.2, -np.inf, -1e-3)


WORST: list[Callable[[Feed, Random], None]] = [
    one_key,
    one_key_in_a_slow_decay,
    keys_nearly_alike,
    one_key_and_its_opposite,
    one_key_overshot,
    reflections,
    all_is_forgotten,
    some_tokens_forget_all,
    minus_infinity,
]


@pytest.mark.parametrize("change", WORST, ids=lambda change: change.__name__)
@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
def test_as_exact_as_token_by_token(rule: str, change: Callable[[Feed, Random], None]) -> None:
    """The same call with a decay for each row of the state, all alike, goes token by token."""
    heads = HEADS["alike"]
    errors = []
    for seed in range(3):
        feed = feed_of("gated_delta", heads, TOKENS, seed)
        change(feed, np.random.default_rng(seed))
        if rule == "gated":
            del feed["b"]
        rows = feed | {"g": np.repeat(feed["g"], KEY, axis=2)}
        expected = exact(heads, feed)
        errors.append(
            [
                [error(*pair) for pair in zip(session.run(None, each), expected, strict=True)]
                for session, each in (
                    (body(rule, heads), feed),
                    (body(rule, heads, decay=KEY), rows),
                )
            ]
        )
    in_chunks, by_tokens = np.max(errors, axis=0)
    assert (in_chunks < 4 * by_tokens).all(), (in_chunks, by_tokens)
