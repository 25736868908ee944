"""The one place that checks what clients ask for, with OpenAI's and vLLM's names, for HTTP and NATS alike.

validate_params checks everything that can be checked without a tokenizer; resolve_sampling then fixes every default.
All checks raise shared.errors.RequestError naming the parameter.
"""

from shared.params.messages import validate_messages
from shared.params.prompt import validate_prompt, validate_prompts
from shared.params.request import Params, validate_params
from shared.params.resolve import resolve_sampling

__all__ = [
    "Params",
    "resolve_sampling",
    "validate_messages",
    "validate_params",
    "validate_prompt",
    "validate_prompts",
]
