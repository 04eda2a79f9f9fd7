"""Every example of docs/execution_providers.md's specification that is code, run as written.

The hub id of an example is a folder of the same name in the working directory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import onnx_ir as ir
import pytest
from tests.parity.reference import make_model

import mobius
from mobius_ir_rules.testing import op_counts

GQA = "com.microsoft::GroupQueryAttention"


@pytest.fixture
def hub_folder(tmp_path, monkeypatch) -> None:
    """The specification's models as folders that their names lead to."""
    for name, model_type in (
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("meta-llama/Llama-3.2-3B", "llama"),
    ):
        make_model(model_type).save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)


def make_config() -> mobius.ArchitectureConfig:
    return mobius.ArchitectureConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


@pytest.mark.usefixtures("hub_folder")
def test_quick_start(caplog):
    pkg = mobius.build("Qwen/Qwen2.5-7B")
    assert pkg.ep == "default"
    # float16 is a dtype that CUDA's GroupQueryAttention has; the checkpoint here is float32.
    pkg = mobius.build("Qwen/Qwen2.5-7B", execution_provider="cuda", dtype="f16")
    assert op_counts(pkg["model"])[GQA] == 3
    caplog.set_level(logging.INFO)
    mobius.build("Qwen/Qwen2.5-7B", execution_provider="cuda", dtype="f16", trace_optimization=True)
    assert any(
        "[EP Trace] Target: cuda, dtype: FLOAT16, role: decoder" in r for r in caplog.messages
    )


def test_build_from_module():
    from mobius import build_from_module
    from mobius.models import CausalLMModel

    config = make_config()
    pkg = build_from_module(
        CausalLMModel(config),
        config,
        execution_provider="cuda",
        dtype="f16",
        trace_optimization=True,
    )
    assert op_counts(pkg["model"])[GQA] == 2


@pytest.mark.usefixtures("hub_folder")
def test_debugging(caplog):
    caplog.set_level(logging.INFO)
    pkg = mobius.build(
        "meta-llama/Llama-3.2-3B",
        execution_provider="cuda",
        dtype="f16",
        load_weights=False,
        trace_optimization=True,
    )
    assert not pkg.is_loaded
    lines = [r.getMessage() for r in caplog.records if r.name == "mobius._optimizations"]
    assert lines[0] == "[EP Trace] Target: cuda, dtype: FLOAT16, role: decoder"
    assert lines[1].startswith("[EP Trace] Stage 1: Cleanup (")
    assert any(
        line.startswith("[EP Trace]   GQAFusion                 : +3 GroupQueryAttention")
        for line in lines
    )
    assert "[EP Trace] Stage 3: Lowering (0 rule groups for cuda)" in lines
    assert "[EP Trace]   Rule                      | Matched | +Nodes | -Nodes" in lines


def test_register_ep():
    from mobius import EpCapabilities, register_ep

    register_ep(
        EpCapabilities(
            name="my-ep",
            gqa_dtypes=frozenset({ir.DataType.FLOAT16}),
        ),
        overwrite=True,
    )
    config = make_config()
    module = mobius.models.CausalLMModel(config)
    pkg = mobius.build_from_module(module, config, execution_provider="my-ep", dtype="f16")
    assert op_counts(pkg["model"])[GQA] == 2


def test_unknown_ep():
    from mobius import ep_registry, get_ep

    assert get_ep("cuda").name == "cuda"
    with pytest.raises(ValueError, match=r"^Unknown execution provider 'rocm'. Supported: \["):
        get_ep("rocm")
    assert ep_registry.get("rocm") is None
    with pytest.raises(ValueError, match="Unknown execution provider 'rocm'"):
        mobius.build("nowhere/at-all", execution_provider="rocm")


def test_optimize_an_existing_model():
    from mobius import optimize_model

    config = make_config()
    task = mobius.tasks.CausalLMTask()
    with mobius.build_context(mobius.get_ep("cuda"), ir.DataType.FLOAT16):
        model = task.build(mobius.models.CausalLMModel(config), config)["model"]
    optimize_model(model, ep="cuda", dtype=ir.DataType.FLOAT16)
    assert op_counts(model)[GQA] == 2


def test_build_context_by_hand():
    from mobius import build_context, ep_capabilities, ep_registry, get_build_dtype

    config = make_config()
    module = mobius.models.CausalLMModel(config)
    task = mobius.tasks.CausalLMTask()
    caps = ep_registry.require("cuda")
    with build_context(caps, ir.DataType.FLOAT16):
        pkg = task.build(module, config)
        assert ep_capabilities().name == "cuda"
        assert get_build_dtype() == ir.DataType.FLOAT16
    assert ep_capabilities().name == "default"
    assert get_build_dtype() == ir.DataType.FLOAT
    weights = pkg["model"].graph.initializers["model.norm.weight"]
    assert weights.dtype == ir.DataType.FLOAT16


def test_asyncio_builds_do_not_meet():
    from mobius import build_context, ep_registry

    config = make_config()
    module = mobius.models.CausalLMModel(config)
    task = mobius.tasks.CausalLMTask()

    async def build_cuda():
        caps = ep_registry.require("cuda")
        with build_context(caps, ir.DataType.FLOAT16):
            return task.build(module, config)

    async def build_dml():
        caps = ep_registry.require("dml")
        with build_context(caps, ir.DataType.FLOAT16):
            return task.build(module, config)

    async def both():
        return await asyncio.gather(build_cuda(), build_dml())

    cuda_pkg, dml_pkg = asyncio.run(both())
    assert op_counts(cuda_pkg["model"]) == op_counts(dml_pkg["model"])


def test_a_task_takes_no_part_of_the_module_away():
    config = make_config()
    module = mobius.models.CausalLMModel(config)
    first = mobius.build_from_module(module, config)
    second = mobius.build_from_module(module, config, execution_provider="cpu")
    assert set(first["model"].graph.inputs).isdisjoint(second["model"].graph.inputs)


def test_a_task_says_what_it_built_for():
    config = make_config()
    with mobius.build_context(mobius.get_ep("cuda"), ir.DataType.FLOAT16):
        pkg = mobius.tasks.CausalLMTask().build(mobius.models.CausalLMModel(config), config)
    assert (pkg.ep, pkg.dtype) == ("cuda", ir.DataType.FLOAT16)


def test_plan_needs_no_model():
    names = [stage.name for stage in mobius.plan("cuda", "f16")]
    assert "GQAFusion" in names
    assert "LowerAttention" not in names


def test_another_configuration_than_the_modules():
    config = make_config()
    other = dataclasses.replace(config, intermediate_size=128)
    with pytest.raises(ValueError, match=r"intermediate_size \(96 in the module, 128 given\)"):
        mobius.build_from_module(mobius.models.CausalLMModel(config), other)


def test_no_model():
    with pytest.raises(TypeError, match="model is None; needed: a hub id"):
        mobius.build(None)
