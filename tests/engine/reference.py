"""The same weights in transformers, float32: what the engine's tokens and logits must equal."""

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import StepInput, StepOutput
from shared.repository.config import to_huggingface
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights

LOGIT_TOLERANCE = 1e-3


class Reference:
    """A transformers model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model.eval()
        self._known: dict[tuple[int, ...], Tensor] = {}

    @classmethod
    def from_folder(cls, folder: str) -> "Reference":
        """A model saved by transformers, in float32 and with its plainest attention."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        return cls(model)

    @classmethod
    def from_stored_llama(cls, stored: StoredModel, rounded_to: torch.dtype = torch.float32) -> "Reference":
        """A stored Llama with its weights rounded to a dtype, computing in float32."""
        model = LlamaForCausalLM(
            LlamaConfig(**to_huggingface(stored.config, stored.eos_token_ids, stored.bos_token_id))
        )
        weights = {name: tensor.to(rounded_to).float() for name, tensor in iter_weights(stored)}
        if stored.config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model.load_state_dict(weights)
        return cls(model)

    @torch.inference_mode()
    def logits(self, prompt: list[int], outputs: list[int]) -> Tensor:
        """float32 [outputs + 1, vocabulary]: from those that choose the first output to those after the last.

        A sequence that begins one computed before is not computed again.
        """
        ids = (*prompt, *outputs)
        for known, logits in self._known.items():
            if known[: len(ids)] == ids and len(known) - len(logits) < len(prompt):
                return logits[len(logits) - len(known) + len(prompt) - 1 :][: len(outputs) + 1]
        self._known[ids] = self.model(torch.tensor([ids]), logits_to_keep=len(outputs) + 1).logits[0]
        return self._known[ids]

    def greedy(self, prompt: list[int], guess: list[int]) -> list[int]:
        """As many greedy tokens as guess has. One pass confirms a right guess; a wrong one is corrected at its first
        difference, as far as it goes."""
        confirmed = self.logits(prompt, guess)[:-1].argmax(dim=-1).tolist()
        for index, (wanted, guessed) in enumerate(zip(confirmed, guess, strict=True)):
            if wanted != guessed:
                return confirmed[: index + 1]
        return confirmed


class LogitsRecorder:
    """An engine that keeps every step's logits and samples greedily."""

    def __init__(self, engine: CpuEngine) -> None:
        self.engine = engine
        self.model, self.model_version = engine.model, engine.model_version
        self.device, self.kernels = engine.device, engine.kernels
        self.num_blocks, self.block_size = engine.num_blocks, engine.block_size
        self.max_model_len, self.vocab_size = engine.max_model_len, engine.vocab_size
        self.logits: list[Tensor] = []

    def warm_up(self) -> None:
        self.engine.warm_up()

    def step(self, batch: StepInput) -> StepOutput:
        logits = self.engine.compute_logits(batch)
        self.logits.append(logits)
        return StepOutput(tokens=logits.argmax(dim=-1).int().numpy())
