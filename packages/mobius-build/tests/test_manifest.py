"""`mobius.json`: what it says, and what is said about one that is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius.errors import PackageLoadError
from mobius.manifest import GenerationEntry, Manifest, ModelEntry, RuntimeOptions, SourceInfo
from mobius.package import ModelPackage
from mobius.report import OpDelta, OptimizationReport, StageRecord
from mobius.stage import Phase
from mobius_eps import get_ep
from mobius_ir_rules.match_log import Refusal

MakePackage = Callable[..., ModelPackage]

MANIFEST = Manifest(
    models={
        "model": ModelEntry(
            path="model.onnx",
            data="model.onnx.data",
            role="decoder",
            ir_version=10,
            opset_imports={"": 24},
        )
    },
    execution_provider="cuda",
    dtype="FLOAT16",
    source=SourceInfo("org/name", "0123abc"),
    padding="right",
    weights=True,
    files=("tokenizer.json",),
    versions={"mobius-build": "0.1.0"},
    runtime=RuntimeOptions(provider_options={"enable_cuda_graph": "0"}, int4_accuracy_level=4),
    generation=GenerationEntry(
        context_length=4096,
        shared_cache=True,
        bos_token_id=1,
        eos_token_ids=(2, 3),
        search={"top_k": 5},
        genai_refusal="no reason.",
    ),
)


def test_a_manifest_survives_the_way_through_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json(), where="x") == MANIFEST


def edited(**changes: Any) -> str:
    """Return the manifest's JSON with fields replaced, or removed where the value is `...`."""
    document = json.loads(MANIFEST.to_json())
    document.update(changes)
    return json.dumps({key: value for key, value in document.items() if value is not ...})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "'format' is 'other', needs 'mobius-package'"),
        ({"format": ...}, "'format' is nothing, needs str"),
        ({"format_version": 2}, "format_version 2; this version of Mobius reads 1"),
        ({"format_version": True}, "'format_version' is True, needs int"),
        ({"padding": "left"}, "'padding' is 'left', needs 'any' or 'right'"),
        ({"weights": 1}, "'weights' is 1, needs bool"),
        ({"models": {}}, "'models' is no entry"),
        ({"models": {"model": {"path": "model.onnx"}}}, r"models\.model: field 'data' is nothing"),
        ({"source": {"revision": None}}, "source: field 'name' is nothing, needs str"),
        ({"runtime": {}}, "runtime: field 'provider_options' is nothing, needs dict"),
        ({"quantization": 4}, "field 'quantization' is 4, needs dict"),
        ({"generation": {}}, "generation: field 'context_length' is nothing, needs int"),
        ({"files": ["../secret"]}, r"'\.\./secret' is not a path inside the package"),
        ({"files": ["/etc/passwd"]}, "'/etc/passwd' is not a path inside"),
        ({"files": ["C:/x"]}, "'C:/x' is not a path inside"),
        ({"files": ["a\\..\\..\\b"]}, "is not a path inside"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PackageLoadError, match=message):
        Manifest.from_json(edited(**changes), where="out/mobius.json")


def test_a_manifest_of_an_older_mobius_lacks_what_has_a_default() -> None:
    """Fields were added after the first release, and unknown ones may come: neither is damage."""
    document = json.loads(MANIFEST.to_json())
    document["new"] = document["models"]["model"]["new"] = 1
    for fields, kind in ((document, Manifest), (document["models"]["model"], ModelEntry)):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING or field.name in ("files", "versions"):
                del fields[field.name]
    read = Manifest.from_json(json.dumps(document), where="x")
    assert read == dataclasses.replace(
        MANIFEST, files=(), versions={}, runtime=None, generation=None, quantization=None
    )
    document["generation"] = {"context_length": 8, "shared_cache": False}
    read = Manifest.from_json(json.dumps(document), where="x")
    assert read.generation == GenerationEntry(context_length=8, shared_cache=False)


def test_a_newer_manifest_names_the_mobius_that_wrote_it() -> None:
    with pytest.raises(PackageLoadError, match=r"wrote it \(mobius-build 0\.1\.0\), or build"):
        Manifest.from_json(edited(format_version=2), where="x")
    with pytest.raises(PackageLoadError, match=r"wrote it \(mobius-build \?\), or build"):
        Manifest.from_json(edited(format_version=2, versions=...), where="x")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"a"'])
def test_text_that_is_not_a_json_object_is_refused(text: str) -> None:
    with pytest.raises(PackageLoadError, match=r"^out/mobius\.json"):
        Manifest.from_json(text, where="out/mobius.json")


def test_an_unknown_dtype_is_refused(make_package: MakePackage, tmp_path: Path) -> None:
    make_package().save(tmp_path / "out")
    path = tmp_path / "out" / "mobius.json"
    path.write_text(edited(dtype="FLOAT17", files=[]))
    with pytest.raises(PackageLoadError, match="'FLOAT17' is not an ONNX dtype"):
        ModelPackage.load(tmp_path / "out")


def saved(package: ModelPackage, tmp_path: Path) -> dict[str, Any]:
    """Save a package and return its manifest as plain values."""
    package.save(tmp_path / "out")
    document: dict[str, Any] = json.loads((tmp_path / "out" / "mobius.json").read_text())
    return document


def test_a_saved_package_says_what_it_is(make_package: MakePackage, tmp_path: Path) -> None:
    report = OptimizationReport(
        ep="cuda",
        dtype=ir.DataType.FLOAT16,
        role="decoder",
        stages=(
            StageRecord(
                phase=Phase.FUSION,
                name="GQAFusion",
                applications=2,
                deltas=(OpDelta("com.microsoft::GroupQueryAttention", 2), OpDelta("Attention", -2)),
                nodes_before=9,
                nodes_after=9,
                refusals=(
                    Refusal(rule="gqa", node="n1", op_type="Attention", reason="no cache"),
                    Refusal(rule="gqa", node="n2", op_type="Attention", reason="no cache"),
                ),
                seconds=1.5,
            ),
        ),
    )
    package = make_package(dtype="float16")
    package = package.with_build(
        ep=get_ep("cuda"), dtype=ir.DataType.FLOAT16, reports={"model": report}
    ).with_source(name="org/name", revision="0123abc")
    document = saved(package, tmp_path)
    versions = document.pop("versions")
    assert versions["onnx-ir"] == ir.__version__
    assert document == {
        "format": "mobius-package",
        "format_version": 1,
        "models": {
            "model": {
                "path": "model.onnx",
                "data": "model.onnx.data",
                "role": "decoder",
                "ir_version": 10,
                "opset_imports": {"": 24},
                "references": [],
                "optimization": {
                    "nodes_before": 9,
                    "nodes_after": 9,
                    "stages": [
                        {
                            "phase": "2",
                            "name": "GQAFusion",
                            "applications": 2,
                            "deltas": {"com.microsoft::GroupQueryAttention": 2, "Attention": -2},
                            "refusals": ["refused 2 Attention: no cache (first: n1)"],
                        }
                    ],
                    "warnings": [],
                },
            }
        },
        "execution_provider": "cuda",
        "dtype": "FLOAT16",
        "source": {"name": "org/name", "revision": "0123abc"},
        "padding": "any",
        "weights": True,
        "files": [],
        "runtime": {
            "provider_options": {
                "enable_cuda_graph": "0",
                "enable_skip_layer_norm_strict_mode": "1",
            },
            "graph_capture": False,
            "int4_accuracy_level": 0,
        },
        "generation": None,
        "quantization": None,
    }


def test_a_graph_with_control_flow_is_not_to_be_captured(
    make_package: MakePackage, tmp_path: Path
) -> None:
    # C122: branches are chosen on the host.
    def runtime(package: ModelPackage, name: str) -> RuntimeOptions | None:
        built = package.with_build(ep=get_ep("trt-rtx"), dtype=ir.DataType.FLOAT, reports={})
        built.save(tmp_path / name)
        loaded = ModelPackage.load(tmp_path / name).runtime_options()
        assert loaded == built.runtime_options()
        return loaded

    plain = runtime(make_package(), "plain")
    assert plain is not None
    assert plain.graph_capture
    assert plain.provider_options == {"enable_cuda_graph": "1"}
    branching = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <then_branch = t () => (float[N] a) { a = Neg (x) },
                        else_branch = e () => (float[N] b) { b = Abs (x) }>
        }
    """)
    package = ModelPackage({"model": branching}, roles={"model": "decoder"})
    found = runtime(package, "branching")
    assert found is not None
    assert not found.graph_capture


def test_the_summary_survives_loading(make_package: MakePackage, tmp_path: Path) -> None:
    make_package().save(tmp_path / "out")
    path = tmp_path / "out" / "mobius.json"
    document = json.loads(path.read_text())
    document["models"]["model"]["optimization"] = {"stages": []}
    path.write_text(json.dumps(document))
    assert ModelPackage.load(tmp_path / "out").optimization_summary("model") == {"stages": []}


GQA = """<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
g (float[1, 4, 32] x, float[1, 1, 8, 16] past, int32[1] seqlens, int32 total)
  => (float[1, 4, 32] y) {
  y, k, v = com.microsoft.GroupQueryAttention <num_heads: int = 2, kv_num_heads: int = 1>
            (x, x, x, past, past, seqlens, total)
}"""


def test_group_query_attention_needs_right_padding(tmp_path: Path) -> None:
    package = ModelPackage({"model": ir.from_onnx_text(GQA)}, roles={"model": "decoder"})
    document = saved(package, tmp_path)
    assert document["padding"] == "right"
    assert document["models"]["model"]["data"] is None
    assert document["models"]["model"]["opset_imports"] == {"": 24, "com.microsoft": 1}
    assert not (tmp_path / "out" / "model.onnx.data").exists()
