"""`Lack`: what it covers, immutability, and every refusal with its message."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import onnx_ir as ir
import pytest

from mobius_eps import EpCapabilities, InvalidCapabilitiesError, Lack

F32, F16 = ir.DataType.FLOAT, ir.DataType.FLOAT16


def test_a_whole_operator_in_every_dtype() -> None:
    lack = Lack("Attention")
    assert lack.covers(F32)
    assert lack.covers(None)
    assert lack.covers(F16, {"softcap"})


def test_some_dtypes() -> None:
    lack = Lack("FusedMatMul", "com.microsoft", {F16})
    assert lack.dtypes == frozenset({F16})
    assert lack.covers(F16)
    assert not lack.covers(F32)
    # Somewhere it is there.
    assert not lack.covers(None)


def test_an_attribute() -> None:
    lack = Lack("GroupQueryAttention", "com.microsoft", attribute="softcap")
    assert not lack.covers(F32)
    assert not lack.covers(F32, {"scale"})
    assert lack.covers(F32, {"scale", "softcap"})


def test_a_value_of_an_attribute_and_several_together() -> None:
    lack = Lack("QMoE", "com.microsoft", attribute="block_size=32")
    assert lack.covers(F16, {"block_size", "block_size=32"})
    assert not lack.covers(F16, {"block_size", "block_size=64"})
    both = Lack("QMoE", "com.microsoft", attribute="bits=8, level=0")
    assert both.use == {"bits=8": None, "level=0": None}
    assert both.covers(F16, both.use)
    assert not both.covers(F16, {"bits=8", "level=4"})
    assert not both.covers(F16, {"bits=4", "level=0"})


def test_an_attribute_in_some_dtypes() -> None:
    lack = Lack("Attention", dtypes={F16}, attribute="softcap")
    assert lack.covers(F16, {"softcap"})
    assert not lack.covers(F16)
    assert not lack.covers(F32, {"softcap"})


def test_an_input_of_some_element_types() -> None:
    lack = Lack("Attention", attribute="attn_mask", input_dtypes=[ir.DataType.BOOL])
    assert lack.input_dtypes == frozenset({ir.DataType.BOOL})
    assert lack.covers(F16, {"attn_mask": ir.DataType.BOOL, "scale": None})
    assert not lack.covers(F16, {"attn_mask": F16})
    assert not lack.covers(F16, {"attn_mask": None})
    assert not lack.covers(F16, {"past_key": ir.DataType.BOOL})
    # Without the element type nothing is known.
    assert not lack.covers(F16, {"attn_mask"})
    assert lack.covers(F16, lack.use)


def test_use_is_what_the_lack_covers() -> None:
    assert Lack("Attention").use == {}
    assert Lack("Attention", attribute="softcap").use == {"softcap": None}
    lack = Lack("Attention", attribute="attn_mask", input_dtypes={F16, ir.DataType.BOOL})
    assert lack.use == {"attn_mask": min(F16, ir.DataType.BOOL)}


def test_frozen_hashable_picklable_copyable() -> None:
    lack = Lack("Attention", dtypes=[F16], reason="why")
    with pytest.raises(dataclasses.FrozenInstanceError):
        lack.op_type = "Other"  # type: ignore[misc]
    for again in (pickle.loads(pickle.dumps(lack)), copy.deepcopy(lack)):
        assert again == lack
        assert hash(again) == hash(lack)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op_type": ""}, "Lack '': op_type='' must be a str and not empty"),
        ({"op_type": 3}, "Lack 3: op_type=3 must be a str and not empty"),
        ({"domain": None}, "Lack 'Or': domain=None must be a str"),
        ({"domain": "ai.onnx"}, "Lack 'Or': domain='ai.onnx' must be '' for the standard domain"),
        ({"attribute": ""}, "Lack 'Or': attribute='' must be a str and not empty, or None"),
        ({"reason": 1}, "Lack 'Or': reason=1 must be a str"),
        ({"dtypes": F16}, "Lack 'Or': dtypes=FLOAT16 must be a set of onnx_ir.DataType"),
        ({"dtypes": "f16"}, "Lack 'Or': dtypes='f16' must be a set of onnx_ir.DataType"),
        ({"dtypes": [1]}, "Lack 'Or': dtypes=[1] must hold onnx_ir.DataType only"),
        (
            {"attribute": "x", "input_dtypes": [9]},
            "Lack 'Or': input_dtypes=[9] must hold onnx_ir.DataType only",
        ),
        (
            {"input_dtypes": {F16}},
            "Lack 'Or': input_dtypes=frozenset({FLOAT16}) needs the name of the input in attribute",
        ),
    ],
)
def test_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidCapabilitiesError) as error:
        Lack(**{"op_type": "Or", **fields})  # type: ignore[arg-type]
    assert str(error.value) == message


def test_capabilities_order_and_merge_them() -> None:
    first, second = Lack("Or"), Lack("And")
    caps = EpCapabilities(name="my-ep", lacks=[first, second, Lack("Or")])
    assert caps.lacks == (second, first)
    assert caps == EpCapabilities(name="my-ep", lacks=(second, first))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"lacks": ["Attention"]},
            "EpCapabilities 'my-ep': lacks holds 'Attention'; every member must be a "
            "mobius_eps.Lack, such as Lack('Attention')",
        ),
        (
            {"lacks": "Attention"},
            "EpCapabilities 'my-ep': lacks='Attention' must be a set of mobius_eps.Lack",
        ),
        *(
            (
                {"max_opset": opset},
                f"EpCapabilities 'my-ep': max_opset={opset!r} must be an int from 17, the oldest "
                "opset that models are brought down to, to 24, the one that they are written in; "
                "a target that runs newer ones has 24",
            )
            for opset in (16, 25, 99, True, "21", 21.0, None)
        ),
    ],
)
def test_refused_in_capabilities(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidCapabilitiesError) as error:
        EpCapabilities(name="my-ep", **fields)  # type: ignore[arg-type]
    assert str(error.value) == message
