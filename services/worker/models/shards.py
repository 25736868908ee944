"""One rank's part of a model's weights: which heads, columns and rows it keeps. Values in, values out.

Queries, keys and values are split by heads, gate and up by the feed-forward's inner values: each rank computes some
outputs from all inputs. The products that follow, back to the hidden size, have these outputs as inputs and are split
by them: each rank computes a part of every sum, and the ranks add these up. Embedding and lm_head are split by token
ids, norms are whole everywhere. (Shoeybi et al., "Megatron-LM", 2019, section 3.)
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from services.worker.engine.options import EngineError
from services.worker.models.parameters import check_shape
from shared.repository.config import ModelConfig


class Place(Protocol):
    """Rank 0 to size - 1 of a group of `size` ranks."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


def check_sizes(config: ModelConfig, size: int) -> None:
    """Raises EngineError where the model cannot be cut into so many equal parts."""
    for count, what in (
        (config.num_attention_heads, "attention heads (num_attention_heads)"),
        (config.intermediate_size, "inner values of a feed-forward (intermediate_size)"),
    ):
        if count % size:
            raise EngineError(f"tensor_parallel_size {size} does not divide the model's {count} {what}")
    num_kv_heads = config.num_key_value_heads
    if num_kv_heads % size and size % num_kv_heads:
        raise EngineError(
            f"tensor_parallel_size {size} neither divides the model's {num_kv_heads} key/value heads "
            "(num_key_value_heads) nor is a multiple of them"
        )


def own_config(config: ModelConfig, place: Place | None) -> ModelConfig:
    """The model of a rank's part alone, as if it were a smaller one; of no place: the whole model.

    Where there are fewer key/value heads than ranks, neighbours keep the same one. The vocabulary's parts are equal, so
    the last may end in rows of no token. Raises EngineError, see check_sizes.
    """
    if place is None:
        return config
    check_sizes(config, place.size)
    return msgspec.structs.replace(
        config,
        num_attention_heads=config.num_attention_heads // place.size,
        num_key_value_heads=max(1, config.num_key_value_heads // place.size),
        intermediate_size=config.intermediate_size // place.size,
        vocab_size=-(-config.vocab_size // place.size),
    )


def own_weights(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], place: Place | None
) -> Iterable[tuple[str, Tensor]]:
    """The rank's parts of the weights, one at a time, each in memory of its own; of no place: the weights themselves.

    config: of the whole model. Raises WeightsError on a misshapen tensor; unknown names pass.
    """
    return weights if place is None else _cut(config, weights, place)


def _cut(config: ModelConfig, weights: Iterable[tuple[str, Tensor]], place: Place) -> Iterator[tuple[str, Tensor]]:
    shapes = config.parameter_shapes()
    for name, tensor in weights:
        check_shape(name, tensor, shapes.get(name))
        cut = _CUTS.get(name.split(".")[-2]) if name in shapes else None
        yield name, tensor if cut is None else cut(tensor, name.endswith(".bias"), config, place)


Cut = Callable[[Tensor, bool, ModelConfig, Place], Tensor]


def _outputs(tensor: Tensor, is_bias: bool, config: ModelConfig, place: Place) -> Tensor:
    """Of whole query heads, or of inner values."""
    return _rows(tensor, place.rank, len(tensor) // place.size)


def _key_value_heads(tensor: Tensor, is_bias: bool, config: ModelConfig, place: Place) -> Tensor:
    num_heads = config.num_key_value_heads
    num_own = max(1, num_heads // place.size)
    first = place.rank * num_heads // place.size  # the one that the rank's first query head reads
    return _rows(tensor, first // num_own, num_own * config.head_dim)


def _inputs(tensor: Tensor, is_bias: bool, config: ModelConfig, place: Place) -> Tensor:
    """Columns of a weight. The bias belongs to the whole sum: rank 0 adds it, the others add zeros."""
    if is_bias:
        return tensor if place.rank == 0 else torch.zeros_like(tensor)
    width = tensor.shape[1] // place.size
    return tensor[:, place.rank * width : (place.rank + 1) * width].clone(memory_format=torch.contiguous_format)


def _token_ids(tensor: Tensor, is_bias: bool, config: ModelConfig, place: Place) -> Tensor:
    """Rows of the rank's ids; those beyond the vocabulary's end are zeros, which nobody looks at."""
    num_rows = -(-len(tensor) // place.size)
    part = tensor.new_zeros((num_rows, tensor.shape[1]))
    own = tensor[place.rank * num_rows : (place.rank + 1) * num_rows]
    part[: len(own)] = own
    return part


def _rows(tensor: Tensor, index: int, count: int) -> Tensor:
    """A copy: a view would keep the whole tensor in memory."""
    return tensor[index * count : (index + 1) * count].clone()


_CUTS: dict[str, Cut] = {
    "q_proj": _outputs,
    "k_proj": _key_value_heads,
    "v_proj": _key_value_heads,
    "o_proj": _inputs,
    "gate_proj": _outputs,
    "up_proj": _outputs,
    "down_proj": _inputs,
    "embed_tokens": _token_ids,
    "lm_head": _token_ids,
}
