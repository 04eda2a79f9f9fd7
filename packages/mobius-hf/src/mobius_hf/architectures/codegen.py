"""CodeGen. Source: `transformers` `CodeGenForCausalLM`."""

from __future__ import annotations

from mobius_hf.architectures.gptj import GPTJ
from mobius_hf.transforms import SplitShards


class CodeGen(GPTJ):
    """GPT-J whose queries, values and keys are stored as one."""

    model_type = "codegen"
    transforms = (
        SplitShards(
            r"(.*\.self_attn)\.qkv_proj\.weight",
            (r"\1.q_proj.weight", r"\1.v_proj.weight", r"\1.k_proj.weight"),
        ),
    )


ARCHITECTURE = CodeGen()
