"""`build_context`: nesting, exceptions, threads, asyncio tasks, and the answers outside."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import onnx_ir as ir
import pytest

from mobius_eps import build_context, ep_capabilities, ep_registry, get_build_dtype

F32, F16, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
CUDA, DML = ep_registry.require("cuda"), ep_registry.require("dml")


def current() -> tuple[str, ir.DataType]:
    return ep_capabilities().name, get_build_dtype()


OUTSIDE = ("default", F32)


def test_outside_a_build_it_is_the_default_ep_in_float() -> None:
    assert current() == OUTSIDE
    assert ep_capabilities() is ep_registry.require("default")
    assert ep_capabilities().gqa_dtypes == frozenset()


def test_specification_component() -> None:
    """The specification's component that branches on the EP sees what the build was given."""

    def forward() -> str:
        capabilities = ep_capabilities()
        dtype = get_build_dtype()
        return "gqa" if dtype in capabilities.gqa_dtypes else "portable"

    assert forward() == "portable"
    capabilities = ep_registry.require("cuda")
    with build_context(capabilities, ir.DataType.FLOAT16):
        assert forward() == "gqa"
    with build_context(capabilities, ir.DataType.FLOAT):
        assert forward() == "portable"


def test_inner_contexts_shadow_outer_ones() -> None:
    with build_context(CUDA, BF16):
        with build_context(DML, F16):
            assert current() == ("dml", F16)
        assert current() == ("cuda", BF16)
    assert current() == OUTSIDE


def test_exceptions_restore_the_outer_context() -> None:
    with build_context(CUDA, BF16):
        with pytest.raises(RuntimeError, match="boom"), build_context(DML, F16):
            raise RuntimeError("boom")
        assert current() == ("cuda", BF16)
    assert current() == OUTSIDE


def test_a_context_that_is_never_entered_changes_nothing() -> None:
    build_context(CUDA, F16)
    assert current() == OUTSIDE


def test_works_as_a_decorator_again_and_again() -> None:
    decorated = build_context(CUDA, F16)(current)
    assert decorated() == decorated() == ("cuda", F16)
    assert current() == OUTSIDE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("cuda", F16),
            "build_context needs an EpCapabilities, got 'cuda'; look one up with "
            "ep_registry.require(name)",
        ),
        (
            (CUDA, "f16"),
            "build_context needs an onnx_ir.DataType, such as onnx_ir.DataType.FLOAT16, got 'f16'",
        ),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(
    arguments: tuple[object, object], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        build_context(*arguments)
    assert str(caught.value) == message


def test_threads_do_not_see_each_other() -> None:
    """Both threads are inside their contexts at the same moment."""
    inside = threading.Barrier(2, timeout=10)

    def build(caps_name: str, dtype: ir.DataType) -> list[tuple[str, ir.DataType]]:
        seen = [current()]
        with build_context(ep_registry.require(caps_name), dtype):
            inside.wait()
            seen.append(current())
            inside.wait()
        seen.append(current())
        return seen

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(build, "cuda", BF16), pool.submit(build, "dml", F16)]
        results = [future.result() for future in futures]
    assert results == [
        [OUTSIDE, ("cuda", BF16), OUTSIDE],
        [OUTSIDE, ("dml", F16), OUTSIDE],
    ]
    assert current() == OUTSIDE


def test_specification_asyncio_tasks() -> None:
    """`asyncio.gather` of two builds: each awaits in the middle and keeps its own context."""

    async def build(caps_name: str, dtype: ir.DataType) -> list[tuple[str, ir.DataType]]:
        seen = []
        with build_context(ep_registry.require(caps_name), dtype):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(current())
        return seen

    async def both() -> list[list[tuple[str, ir.DataType]]]:
        return await asyncio.gather(build("cuda", F16), build("dml", F16))

    assert asyncio.run(both()) == [[("cuda", F16)] * 3, [("dml", F16)] * 3]
    assert current() == OUTSIDE


def test_tasks_inherit_and_do_not_leak() -> None:
    async def child() -> tuple[str, ir.DataType]:
        inherited = current()
        with build_context(DML, F16):
            await asyncio.sleep(0)
        return inherited

    async def parent() -> list[tuple[str, ir.DataType]]:
        with build_context(CUDA, BF16):
            inherited = await asyncio.create_task(child())
            return [inherited, current()]

    assert asyncio.run(parent()) == [("cuda", BF16), ("cuda", BF16)]
