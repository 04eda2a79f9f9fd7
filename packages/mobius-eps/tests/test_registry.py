"""`EpRegistry`: the mapping protocol, registration, unknown names, threads."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator, Mapping

import onnx_ir as ir
import pytest

import mobius_eps.registry
from mobius_eps import (
    EpCapabilities,
    EpRegistrationError,
    EpRegistry,
    MobiusError,
    UnknownEpError,
    ep_registry,
    get_ep,
    register_ep,
)
from mobius_eps.builtin import BUILTIN_EPS

NAMES = ["cpu", "cuda", "default", "dml", "mlx", "onnx-standard", "trt-rtx", "webgpu"]


@pytest.fixture
def registry() -> EpRegistry:
    return EpRegistry(BUILTIN_EPS)


@pytest.fixture
def fresh_global(monkeypatch: pytest.MonkeyPatch) -> Iterator[EpRegistry]:
    """The registry that `register_ep` and `get_ep` use, replaced for one test."""
    fresh = EpRegistry(BUILTIN_EPS)
    monkeypatch.setattr(mobius_eps.registry, "ep_registry", fresh)
    return fresh


def test_mapping_protocol(registry: EpRegistry) -> None:
    assert isinstance(registry, Mapping)
    assert sorted(registry) == NAMES
    assert registry.names() == tuple(NAMES)
    assert len(registry) == 8
    assert "cuda" in registry
    assert "rocm" not in registry
    assert registry["cuda"].name == "cuda"
    assert dict(registry.items())["cpu"] is registry["cpu"]
    with pytest.raises(KeyError, match="rocm"):
        registry["rocm"]


def test_get_returns_none_for_an_unknown_name(registry: EpRegistry) -> None:
    """The specification's `optimize_model` asks with `get` and raises by itself."""
    assert registry.get("rocm") is None
    assert registry.get("cuda") is registry.require("cuda")


def test_specification_get_ep() -> None:
    assert get_ep("cuda") is ep_registry.require("cuda")
    with pytest.raises(ValueError, match=r"^Unknown execution provider 'rocm'\. Supported: \["):
        get_ep("rocm")


def test_specification_register_ep(fresh_global: EpRegistry) -> None:
    register_ep(EpCapabilities(name="my-ep", gqa_dtypes=frozenset({ir.DataType.FLOAT16})))
    assert get_ep("my-ep").gqa_dtypes == {ir.DataType.FLOAT16}
    assert fresh_global.names() == tuple(sorted([*NAMES, "my-ep"]))


def test_register_refuses_a_taken_name(registry: EpRegistry) -> None:
    before = registry["cuda"]
    with pytest.raises(EpRegistrationError) as caught:
        registry.register(EpCapabilities(name="cuda"))
    assert str(caught.value) == (
        "Execution provider 'cuda' is registered already; pass overwrite=True to replace it, or "
        "use another name"
    )
    assert isinstance(caught.value, MobiusError)
    assert registry["cuda"] is before


def test_register_ep_overwrites_when_told(fresh_global: EpRegistry) -> None:
    mine = EpCapabilities(name="cuda")
    with pytest.raises(EpRegistrationError):
        register_ep(mine)
    register_ep(mine, overwrite=True)
    assert get_ep("cuda") is mine
    assert len(fresh_global) == 8


def test_register_refuses_what_is_no_descriptor(registry: EpRegistry) -> None:
    with pytest.raises(
        EpRegistrationError, match=r"^Cannot register 'my-ep': an EpCapabilities is needed$"
    ):
        registry.register("my-ep")


def test_the_constructor_refuses_two_of_one_name() -> None:
    caps = EpCapabilities(name="my-ep")
    with pytest.raises(EpRegistrationError, match="'my-ep' is registered already"):
        EpRegistry([caps, caps])


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("rocm", ""),
        ("webgp", ". Did you mean 'webgpu'?"),
        ("CUDA", ". Did you mean 'cuda'?"),
        ("CUDAExecutionProvider", ". Did you mean 'cuda'?"),
        ("DmlExecutionProvider", ". Did you mean 'dml'?"),
        ("directml", ". Did you mean 'dml'?"),
        ("tensorrt", ". Did you mean 'trt-rtx'?"),
        ("trt_rtx", ". Did you mean 'trt-rtx'?"),
        ("NvTensorRTRTXExecutionProvider", ". Did you mean 'trt-rtx'?"),
        ("onnx-standart", ". Did you mean 'onnx-standard'?"),
        ("", ""),
        (None, ""),
    ],
)
def test_unknown_names(registry: EpRegistry, name: str, ending: str) -> None:
    with pytest.raises(UnknownEpError) as caught:
        registry.require(name)
    assert str(caught.value) == (f"Unknown execution provider {name!r}. Supported: {NAMES}{ending}")
    assert isinstance(caught.value, MobiusError)
    assert isinstance(caught.value, ValueError)
    assert caught.value.name == name
    assert caught.value.supported == tuple(NAMES)


def test_unknown_name_error_survives_pickling(registry: EpRegistry) -> None:
    with pytest.raises(UnknownEpError) as caught:
        registry.require("cud")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is UnknownEpError
    assert str(again) == str(caught.value)


def test_repr_lists_names(registry: EpRegistry) -> None:
    assert repr(registry) == f"EpRegistry({NAMES})"


def test_iteration_is_a_snapshot(registry: EpRegistry) -> None:
    seen = []
    for name in registry:
        seen.append(name)
        registry.register(EpCapabilities(name=f"after-{name}"))
    assert sorted(seen) == NAMES
    assert len(registry) == 16


def test_threads_register_without_losing_any(registry: EpRegistry) -> None:
    """Eight threads register and iterate at once; a lost update would miss a name."""
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        try:
            start.wait()
            for index in range(100):
                registry.register(EpCapabilities(name=f"ep-{thread}-{index}"))
                assert f"ep-{thread}-{index}" in list(registry)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(registry) == 808


def test_one_of_many_threads_wins_a_name(registry: EpRegistry) -> None:
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        start.wait()
        try:
            registry.register(EpCapabilities(name="my-ep"))
        except EpRegistrationError:
            outcomes.append("refused")
        else:
            outcomes.append("registered")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + ["registered"]
