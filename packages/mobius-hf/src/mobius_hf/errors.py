"""What can be wrong with a HuggingFace model: every error that this package raises.

Each message names the thing, what was found, what was needed, and what to do next.
"""

from __future__ import annotations

from mobius_eps import MobiusError


class HuggingFaceError(MobiusError):
    """Base of this package's errors."""


class ModelNotFoundError(HuggingFaceError, FileNotFoundError):
    """A folder, a repository, a revision or a file of it does not exist."""


class HubError(HuggingFaceError, OSError):
    """The hub refused access or could not be reached."""


class UnknownModelTypeError(HuggingFaceError, ValueError):
    """No architecture is registered for a `model_type`."""


class ArchitectureRegistrationError(HuggingFaceError, ValueError):
    """A family cannot be registered: it is none, or its `model_type` is taken."""


class CheckpointConfigError(HuggingFaceError, ValueError):
    """`config.json` lacks a field, or has one that cannot be built."""


class CheckpointError(HuggingFaceError, ValueError):
    """Weight files are missing, damaged, or in a format that is not read."""


class GgufMissingError(HuggingFaceError, ImportError):
    """A GGUF file is to be read, and the library `gguf` is not installed."""
