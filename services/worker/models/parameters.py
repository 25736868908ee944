"""A model's weights by name while its layers are built."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class WeightsError(Exception):
    """Weights that do not fit the model's configuration; the message names the tensor."""


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...] | None) -> None:
    """Raises WeightsError if the tensor has another shape; expected: None for any."""
    if expected is not None and tuple(tensor.shape) != expected:
        raise WeightsError(f"{name} has shape {tuple(tensor.shape)}, the configuration asks for {expected}")


class Parameters:
    """Weights in the engine's dtype, those of norms in float32. Each is taken once: a fused copy doubles no memory."""

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
    ) -> None:
        """weights: Hugging Face names and tensors of any float dtype. shapes: every name expected, with its shape.

        Raises WeightsError on a missing, unexpected or misshapen tensor.
        """
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in weights:
            if name not in shapes:
                raise WeightsError(f"unexpected tensor {name}")
            check_shape(name, tensor, shapes[name])
            self._tensors[name] = tensor.to(torch.float32 if name.endswith("norm.weight") else dtype).contiguous()
        self.dtype = dtype
        missing = sorted(shapes.keys() - self._tensors.keys())
        if missing:
            raise WeightsError(f"{len(missing)} tensors are missing, the first is {missing[0]}")

    def take(self, name: str) -> Tensor:
        """The tensor of this name, which is not kept."""
        return self._tensors.pop(name)

    def take_fused(self, *names: str) -> Tensor:
        """The tensors of these names below one another."""
        return torch.cat([self._tensors.pop(name) for name in names])
