"""`RuntimeNames`: what the runtimes that load a package call an execution provider."""

from __future__ import annotations

import dataclasses

from mobius_eps.errors import InvalidCapabilitiesError

GENAI_CPU = "cpu"
"""onnxruntime-genai's name for the provider that is always there and takes no options."""


@dataclasses.dataclass(frozen=True)
class RuntimeNames:
    """Names of one execution provider in ONNX Runtime and onnxruntime-genai.

    Attributes:
        ort: ONNX Runtime's name, such as `"CUDAExecutionProvider"`; `None` if it has none.
        genai: Key of its options in `genai_config.json`, such as `"cuda"`; `"cpu"` for what runs
            there without any, `None` if onnxruntime-genai does not know the provider.
        genai_graph_capture: Option that switches graph capture on with `"1"`; `None` if there is
            none.

    Raises:
        InvalidCapabilitiesError: If a value is wrong. The message names the field and the value.
    """

    ort: str | None = None
    genai: str | None = None
    genai_graph_capture: str | None = None

    def __post_init__(self) -> None:
        """Validate each field, then one against another."""
        for field in ("ort", "genai", "genai_graph_capture"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidCapabilitiesError(
                    f"RuntimeNames: {field}={value!r} must be a str and not empty, or None"
                )
        if self.genai_graph_capture is not None and self.genai in (None, GENAI_CPU):
            raise InvalidCapabilitiesError(
                f"RuntimeNames: genai_graph_capture={self.genai_graph_capture!r} needs a genai "
                f"that takes options, not {self.genai!r}"
            )


NAMELESS = RuntimeNames()
"""Names of a provider that no runtime is known to have."""
