"""Rules and passes that rewrite ONNX graphs: sound ones, which say why they leave a node alone.

```python
import onnxscript.rewriter
import mobius_ir_rules

model = onnxscript.rewriter.rewrite(model, mobius_ir_rules.group_query_attention_rules())
for refusal in mobius_ir_rules.refusals(model, mobius_ir_rules.group_query_attention_rules()):
    print(refusal)
```

`apply_rules(model, rules)` does the first two steps in one walk: it shows a node only to the rules
that it may be the root of.

Here are the rules by factory, what rules are written with (`Rule`, see `mobius_ir_rules.rule`),
and the reports. `mobius_ir_rules.passes` has graph passes, `mobius_ir_rules.functions` the bodies
of custom operators, `mobius_ir_rules.testing` the checks that every rule passes.
"""

from mobius_ir_rules.__about__ import __version__
from mobius_ir_rules.attention_mask import MaskDescription, describe_mask
from mobius_ir_rules.functions import FUNCTIONS
from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.fusion.attention import attention_rules
from mobius_ir_rules.fusion.bias_gelu import bias_gelu_rules
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.fusion.gelu import gelu_rules
from mobius_ir_rules.fusion.group_query_attention import group_query_attention_rules
from mobius_ir_rules.fusion.layer_normalization import layer_normalization_rules
from mobius_ir_rules.fusion.moe import moe_rules
from mobius_ir_rules.fusion.pack_qkv import pack_qkv_rules
from mobius_ir_rules.fusion.q_moe import q_moe_rules
from mobius_ir_rules.fusion.recurrence import recurrence_rules
from mobius_ir_rules.fusion.rms_normalization import rms_normalization_rules
from mobius_ir_rules.fusion.rotary_embedding import rotary_embedding_rules
from mobius_ir_rules.fusion.silu import quick_gelu_rules
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.fusion.skip_norm import skip_norm_rules
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.lowering.attention import attention_to_primitives_rules
from mobius_ir_rules.lowering.separate_rope import separate_rope_rules
from mobius_ir_rules.lowering.unpack_qkv import unpack_qkv_rules
from mobius_ir_rules.match_log import MatchLog, Refusal, refusals
from mobius_ir_rules.rewriting import RewriteResult, apply_rules
from mobius_ir_rules.rule import Plan, RefusedError, Rule, refuse

__all__ = [
    "FUNCTIONS",
    "AttachFunctions",
    "DerivedTensor",
    "MaskDescription",
    "MatchLog",
    "Plan",
    "Refusal",
    "RefusedError",
    "RewriteResult",
    "Rule",
    "__version__",
    "apply_rules",
    "attention_rules",
    "attention_to_primitives_rules",
    "bias_gelu_rules",
    "describe_mask",
    "fused_matmul_rules",
    "gelu_rules",
    "group_query_attention_rules",
    "layer_normalization_rules",
    "moe_rules",
    "pack_qkv_rules",
    "q_moe_rules",
    "quick_gelu_rules",
    "recurrence_rules",
    "refusals",
    "refuse",
    "rms_normalization_rules",
    "rotary_embedding_rules",
    "separate_rope_rules",
    "skip_layer_norm_rules",
    "skip_norm_rules",
    "unpack_qkv_rules",
]
