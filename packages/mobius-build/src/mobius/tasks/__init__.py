"""Tasks: which graphs a model becomes, and what goes in and out of each."""

from collections.abc import Mapping
from types import MappingProxyType

from mobius.tasks.base import Task, UnknownTaskError
from mobius.tasks.causal_lm import CausalLMTask

TASKS: Mapping[str, Task] = MappingProxyType({"text-generation": CausalLMTask()})

__all__ = ["TASKS", "CausalLMTask", "Task", "UnknownTaskError"]
