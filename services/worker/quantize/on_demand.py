"""A stored model's weights, read when they are needed: no more than one layer's are in float32 at a time."""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from services.worker.models.layers import DecoderLayer
from services.worker.models.parameters import Parameters
from services.worker.models.registry import builder_of
from shared.repository.errors import BadModelFile
from shared.repository.stored_model import StoredModel
from shared.repository.weights import iter_weights


class WeightsOnDemand:
    """model: its weights' checksums the caller has compared."""

    def __init__(self, model: StoredModel) -> None:
        self._model = model
        self._shapes = model.config.parameter_shapes()

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> Tensor:
        """In the file's dtype, what is quantised there in float32. Raises BadModelFile for a number that is not finite,
        and what iter_weights raises."""
        ((_, tensor),) = self._finite({name})
        return tensor

    def layer(self, index: int) -> DecoderLayer:
        """In float32. Its family builds the whole decoder, but with nothing in the other layers.

        Raises WeightsError, BadModelFile for a number that is not finite, and what iter_weights raises.
        """
        config, prefix = self._model.config, f"model.layers.{index}."
        own = {name for name in self._shapes if name.startswith(prefix)}
        parameters = Parameters(self._only(own), self._shapes, torch.float32)
        return builder_of(config.architecture)(config, parameters).layers[index]

    def _only(self, own: set[str]) -> Iterable[tuple[str, Tensor]]:
        yield from self._finite(own)
        for name, shape in self._shapes.items():
            if name not in own:
                yield name, torch.empty(shape, device="meta")

    def _finite(self, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in iter_weights(self._model, verify=False, only=names):
            if not torch.isfinite(torch.stack(tensor.aminmax())).all():  # of all numbers it would copy them
                raise BadModelFile(self._model.path, f"{name} holds a number that is not finite")
            yield name, tensor
