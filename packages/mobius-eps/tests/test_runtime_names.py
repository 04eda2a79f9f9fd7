"""`RuntimeNames` refuses values that no runtime's configuration can be written from."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from mobius_eps import EpCapabilities, InvalidCapabilitiesError, RuntimeNames


def test_a_value_is_equal_hashable_and_picklable() -> None:
    names = RuntimeNames(ort="MyExecutionProvider", genai="my", genai_graph_capture="capture")
    assert names == pickle.loads(pickle.dumps(names))
    assert hash(names) == hash(RuntimeNames("MyExecutionProvider", "my", "capture"))
    assert RuntimeNames() == RuntimeNames(None, None, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ort": ""}, "ort='' must be a str and not empty, or None"),
        ({"genai": 1}, "genai=1 must be a str and not empty, or None"),
        ({"genai": "my", "genai_graph_capture": True}, "genai_graph_capture=True must be a str"),
        ({"genai_graph_capture": "x"}, "genai_graph_capture='x' needs a genai that takes options"),
        ({"genai": "cpu", "genai_graph_capture": "x"}, "takes options, not 'cpu'"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCapabilitiesError, match=re.escape(message)):
        RuntimeNames(**values)


def test_capabilities_take_nothing_else() -> None:
    with pytest.raises(InvalidCapabilitiesError, match="'my-ep': runtime_names='cuda' must be a "):
        EpCapabilities(name="my-ep", runtime_names="cuda")  # type: ignore[arg-type]
