"""The models that can be asked for, as tokenizers announce them."""

from shared.errors import model_not_found, unavailable
from shared.messages.control import ModelCard, TokenizerHeartbeat

KEEP_S = 30.0


class ModelDirectory:
    """Cards by name. A model that no tokenizer has announced for KEEP_S is gone. Times are seconds."""

    def __init__(self) -> None:
        self._cards: dict[str, ModelCard] = {}
        self._heard_at: dict[str, float] = {}

    def on_tokenizer(self, heartbeat: TokenizerHeartbeat, now: float) -> None:
        """Learn what a tokenizer serves."""
        for card in heartbeat.models:
            self._cards[card.name] = card
            self._heard_at[card.name] = now

    def cards(self, now: float) -> list[ModelCard]:
        """All models, in the order in which they became known."""
        for name in [name for name, heard_at in self._heard_at.items() if now - heard_at > KEEP_S]:
            del self._cards[name], self._heard_at[name]
        return list(self._cards.values())

    def find(self, name: str, now: float) -> ModelCard:
        """The card of a model. RequestError 404 if there is none of this name, 503 while nothing is known at all."""
        if not self.cards(now):
            raise unavailable("No model is loaded yet; try again later.")
        card = self._cards.get(name)
        if card is None:
            raise model_not_found(name)
        return card


def model_object(card: ModelCard) -> dict[str, object]:
    """OpenAI's model object, with vLLM's additions."""
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "tokenbus",
        "root": card.root or card.name,
        "parent": None,
        "max_model_len": card.max_model_len,
    }
