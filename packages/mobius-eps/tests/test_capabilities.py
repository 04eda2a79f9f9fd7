"""`EpCapabilities`: values, immutability, and every refusal with its message."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import onnx_ir as ir
import pytest

from mobius_eps import EpCapabilities, InvalidCapabilitiesError, MobiusError, ep_registry

F32, F16, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
ONLY_STANDARD = {
    "allowed_domains": {""},
    "supports_skip_layer_norm": False,
    "supports_fused_matmul": False,
    "supports_fused_moe": False,
}


def test_defaults_are_portable_onnx() -> None:
    caps = EpCapabilities(name="my-ep")
    assert dataclasses.asdict(caps) == {
        "name": "my-ep",
        "gqa_dtypes": frozenset(),
        "qkv_pack_dtypes": frozenset(),
        "supports_fused_rope": True,
        "supports_skip_layer_norm": True,
        "supports_fused_matmul": True,
        "supports_fused_moe": True,
        "supports_packed_multi_head_attention": False,
        "default_int4_accuracy_level": 0,
        "provider_options": {},
        "enable_graph_capture": False,
        "dtypes": frozenset({F32, F16, BF16}),
        "allowed_domains": frozenset({"", "com.microsoft"}),
        "max_opset": 24,
        "lacks": (),
        "keeps_function_bodies": True,
        "fast_loops": True,
        "runtime_names": {"ort": None, "genai": None, "genai_graph_capture": None},
        "max_buffer_bytes": None,
        "max_tensor_elements": None,
    }


def test_positional_order_is_that_of_the_specification() -> None:
    names = [field.name for field in dataclasses.fields(EpCapabilities)]
    assert names[:11] == [
        "name",
        "gqa_dtypes",
        "qkv_pack_dtypes",
        "supports_fused_rope",
        "supports_skip_layer_norm",
        "supports_fused_matmul",
        "supports_fused_moe",
        "supports_packed_multi_head_attention",
        "default_int4_accuracy_level",
        "provider_options",
        "enable_graph_capture",
    ]


def test_sets_and_mappings_are_frozen_copies() -> None:
    dtypes, options = {F16}, {"enable_cuda_graph": "0"}
    caps = EpCapabilities(name="my-ep", gqa_dtypes=dtypes, provider_options=options)
    dtypes.add(BF16)
    options["enable_cuda_graph"] = "1"
    assert caps.gqa_dtypes == frozenset({F16})
    assert type(caps.gqa_dtypes) is frozenset
    assert caps.provider_options == {"enable_cuda_graph": "0"}


def test_dtypes_may_come_from_any_iterable() -> None:
    caps = EpCapabilities(name="my-ep", gqa_dtypes=[F16, BF16, F16], qkv_pack_dtypes=iter([F16]))
    assert caps.gqa_dtypes == frozenset({F16, BF16})
    assert caps.qkv_pack_dtypes == frozenset({F16})


def test_nothing_can_be_changed() -> None:
    caps = EpCapabilities(name="my-ep", provider_options={"key": "value"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        caps.name = "other"
    with pytest.raises(TypeError):
        caps.provider_options["key"] = "other"
    with pytest.raises(AttributeError):
        caps.provider_options.update({"key": "other"})
    assert caps.provider_options["key"] == "value"


@pytest.mark.parametrize("name", ep_registry.names())
def test_equal_hashable_picklable_copyable(name: str) -> None:
    caps = ep_registry.require(name)
    for again in (
        pickle.loads(pickle.dumps(caps)),
        copy.copy(caps),
        copy.deepcopy(caps),
        dataclasses.replace(caps),
    ):
        assert again == caps
        assert hash(again) == hash(caps)
    assert dataclasses.replace(caps, name="another") != caps


def test_replace_validates_again() -> None:
    caps = ep_registry.require("cuda")
    with pytest.raises(InvalidCapabilitiesError, match="qkv_pack_dtypes"):
        dataclasses.replace(caps, gqa_dtypes=frozenset())


def test_only_standard_domain_is_accepted_with_its_fields() -> None:
    caps = EpCapabilities(name="strict", **ONLY_STANDARD)
    assert caps.allowed_domains == frozenset({""})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            (
                {"name": name},
                f"EpCapabilities {name!r}: name={name!r} must be a non-empty lower-case slug, "
                "such as 'my-ep': letters a-z and digits, joined by single '-' or '_'",
            )
            for name in ("", "CUDA", "my ep", "-ep", "ep-", "a--b", "ep\n", None, 3)
        ),
        (
            {"gqa_dtypes": {"f16"}},
            "EpCapabilities 'my-ep': gqa_dtypes holds 'f16'; every member must be an "
            "onnx_ir.DataType, such as onnx_ir.DataType.FLOAT16",
        ),
        (
            {"gqa_dtypes": {10}},
            "EpCapabilities 'my-ep': gqa_dtypes holds 10; every member must be an "
            "onnx_ir.DataType, such as onnx_ir.DataType.FLOAT16",
        ),
        (
            {"gqa_dtypes": {ir.DataType.INT64}},
            "EpCapabilities 'my-ep': gqa_dtypes holds INT64; a floating-point dtype is needed",
        ),
        (
            {"gqa_dtypes": F16},
            f"EpCapabilities 'my-ep': gqa_dtypes={F16!r} must be a set of onnx_ir.DataType",
        ),
        (
            {"qkv_pack_dtypes": "f16"},
            "EpCapabilities 'my-ep': qkv_pack_dtypes='f16' must be a set of onnx_ir.DataType",
        ),
        (
            {"dtypes": set()},
            "EpCapabilities 'my-ep': dtypes is empty; at least one float dtype is needed",
        ),
        (
            {"gqa_dtypes": {F16}, "qkv_pack_dtypes": {F16, BF16}},
            "EpCapabilities 'my-ep': qkv_pack_dtypes={FLOAT16, BFLOAT16} must be a subset of "
            "gqa_dtypes={FLOAT16}; remove {BFLOAT16} from qkv_pack_dtypes or add it to gqa_dtypes",
        ),
        (
            {"qkv_pack_dtypes": {F16}},
            "EpCapabilities 'my-ep': qkv_pack_dtypes={FLOAT16} must be a subset of "
            "gqa_dtypes={}; remove {FLOAT16} from qkv_pack_dtypes or add it to gqa_dtypes",
        ),
        (
            {"gqa_dtypes": {F16, BF16}, "dtypes": {F32, F16}},
            "EpCapabilities 'my-ep': gqa_dtypes={FLOAT16, BFLOAT16} must be a subset of "
            "dtypes={FLOAT, FLOAT16}; remove {BFLOAT16} from gqa_dtypes or add it to dtypes",
        ),
        *(
            (
                {"default_int4_accuracy_level": level},
                f"EpCapabilities 'my-ep': default_int4_accuracy_level={level!r} must be an int "
                "from 0 (most accurate) to 4 (fastest)",
            )
            for level in (-1, 5, 1.0, "4", True)
        ),
        *(
            (
                {flag: value},
                f"EpCapabilities 'my-ep': {flag}={value!r} must be True or False",
            )
            for flag, value in (
                ("supports_fused_rope", 1),
                ("supports_skip_layer_norm", None),
                ("supports_fused_matmul", "no"),
                ("supports_fused_moe", 0),
                ("supports_packed_multi_head_attention", "yes"),
                ("enable_graph_capture", "1"),
            )
        ),
        (
            {"provider_options": [("a", "b")]},
            "EpCapabilities 'my-ep': provider_options=[('a', 'b')] must be a mapping of str to str",
        ),
        (
            {"provider_options": {"enable_cuda_graph": 0}},
            "EpCapabilities 'my-ep': provider_options holds 'enable_cuda_graph': 0; keys and "
            "values must be str, such as {'enable_cuda_graph': '0'}",
        ),
        (
            {"allowed_domains": {"com.microsoft"}},
            "EpCapabilities 'my-ep': allowed_domains={'com.microsoft'} must contain '', the "
            "standard ONNX domain",
        ),
        (
            {"allowed_domains": {"", "ai.onnx"}},
            "EpCapabilities 'my-ep': allowed_domains holds 'ai.onnx'; write the standard domain "
            "as ''",
        ),
        (
            {"allowed_domains": ""},
            "EpCapabilities 'my-ep': allowed_domains='' must be a set of operator domains",
        ),
        (
            {"allowed_domains": {"", 1}},
            "EpCapabilities 'my-ep': allowed_domains holds 1; every member must be a str",
        ),
        (
            {"allowed_domains": {""}},
            "EpCapabilities 'my-ep': allowed_domains={''} has no 'com.microsoft', whose operators "
            "these fields ask for; set supports_skip_layer_norm=False, "
            "supports_fused_matmul=False, supports_fused_moe=False, or add 'com.microsoft' to "
            "allowed_domains",
        ),
        (
            {
                **ONLY_STANDARD,
                "gqa_dtypes": {F16},
                "supports_packed_multi_head_attention": True,
            },
            "EpCapabilities 'my-ep': allowed_domains={''} has no 'com.microsoft', whose operators "
            "these fields ask for; set gqa_dtypes=frozenset(), "
            "supports_packed_multi_head_attention=False, or add 'com.microsoft' to "
            "allowed_domains",
        ),
    ],
)
def test_refusals_name_field_value_and_need(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidCapabilitiesError) as caught:
        EpCapabilities(**{"name": "my-ep", **fields})
    assert str(caught.value) == message
    assert isinstance(caught.value, MobiusError)
    assert isinstance(caught.value, ValueError)
