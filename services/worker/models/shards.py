"""One rank's part of a model's weights: which heads, columns and rows it keeps. Values in, values out.

Queries, keys and values are split by heads, gate and up by the feed-forward's inner values: each rank computes some
outputs from all inputs. The products that follow, back to the hidden size, have these outputs as inputs and are split
by them: each rank computes a part of every sum, and the ranks add these up. Embedding and lm_head are split by token
ids, norms are whole everywhere. (Shoeybi et al., "Megatron-LM", 2019, section 3.)

Which inner values a rank has does not matter, as long as it has the same of gate, up and down. Where down's inputs are
quantised in groups that lie anywhere (desc_act), ranks take them in the order of these groups, so that each has whole
groups. (Hoque et al., "TP-aware dequantization", 2024.)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from services.worker.engine.options import EngineError
from services.worker.models.decoder import EMBEDDING_NAME, HEAD_NAME
from services.worker.models.parameters import check_shape
from shared.quantization.cut import Index, take_inputs, take_outputs
from shared.quantization.matrix import QuantisedMatrix
from shared.repository.config import ModelConfig

InnerOrders = Mapping[str, Tensor]
"""Feed-forward, e.g. model.layers.0.mlp -> all of its inner values, int64, in the order that ranks take them in."""
NO_ORDERS: InnerOrders = {}

_BY_TOKEN_IDS = (EMBEDDING_NAME, HEAD_NAME)


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
    config: ModelConfig,
    weights: Iterable[tuple[str, Tensor]],
    place: Place | None,
    inner_orders: InnerOrders = NO_ORDERS,
) -> Iterable[tuple[str, Tensor]]:
    """The rank's parts of the weights, one at a time, each in memory of its own; of no place: the weights themselves.

    config: of the whole model. Raises WeightsError on a misshapen tensor; unknown names pass.
    """
    return weights if place is None else _cut(config, weights, place, inner_orders)


def own_matrix(
    config: ModelConfig,
    name: str,
    matrix: QuantisedMatrix,
    place: Place | None,
    inner_orders: InnerOrders = NO_ORDERS,
) -> QuantisedMatrix:
    """The same of the quantised matrix of a projection, which stays quantised."""
    cut = None if place is None else _cut_of(config, name, place, inner_orders)
    if cut is None:
        return matrix
    return take_inputs(matrix, cut.kept) if cut.is_of_inputs else take_outputs(matrix, cut.kept)


def _cut(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], place: Place, inner_orders: InnerOrders
) -> Iterator[tuple[str, Tensor]]:
    shapes = config.parameter_shapes()
    for name, tensor in weights:
        check_shape(name, tensor, shapes.get(name))
        if name in _BY_TOKEN_IDS:
            yield name, _token_ids(tensor, place)
            continue
        cut = _cut_of(config, name, place, inner_orders) if name in shapes else None
        yield name, tensor if cut is None else _part(tensor, name.endswith(".bias"), cut, place)


@dataclass(frozen=True, slots=True)
class _Cut:
    """kept: outputs, or inputs, that a rank keeps of a projection."""

    is_of_inputs: bool
    kept: Index


def _cut_of(config: ModelConfig, name: str, place: Place, inner_orders: InnerOrders) -> _Cut | None:
    """name: of a projection's weight or bias. None for what is whole on every rank."""
    *parts, module, _ = name.split(".")
    if module in ("q_proj", "o_proj"):
        return _Cut(module == "o_proj", _share_of(config.q_size, place))
    if module in ("k_proj", "v_proj"):
        return _Cut(False, _key_value_heads(config, place))
    if module in ("gate_proj", "up_proj", "down_proj"):
        kept, order = _share_of(config.intermediate_size, place), inner_orders.get(".".join(parts))
        return _Cut(module == "down_proj", kept if order is None else order[kept])
    return None


def _share_of(count: int, place: Place) -> slice:
    """Of whole query heads, or of inner values."""
    num_own = count // place.size
    return slice(place.rank * num_own, (place.rank + 1) * num_own)


def _key_value_heads(config: ModelConfig, place: Place) -> slice:
    num_heads = config.num_key_value_heads
    num_own = max(1, num_heads // place.size)
    first = place.rank * num_heads // place.size // num_own * num_own  # the one that the rank's first query head reads
    return slice(first * config.head_dim, (first + num_own) * config.head_dim)


def _part(tensor: Tensor, is_bias: bool, cut: _Cut, place: Place) -> Tensor:
    """A copy: a view would keep the whole tensor in memory. The bias of a sum of all ranks belongs to the whole: rank 0
    adds it, the others add zeros."""
    if not cut.is_of_inputs:
        return tensor[cut.kept].clone()
    if is_bias:
        return tensor if place.rank == 0 else torch.zeros_like(tensor)
    return tensor[:, cut.kept].clone(memory_format=torch.contiguous_format)


def _token_ids(tensor: Tensor, place: Place) -> Tensor:
    """Rows of the rank's ids; those beyond the vocabulary's end are zeros, which nobody looks at."""
    num_rows = -(-len(tensor) // place.size)
    part = tensor.new_zeros((num_rows, tensor.shape[1]))
    own = tensor[place.rank * num_rows : (place.rank + 1) * num_rows]
    part[: len(own)] = own
    return part
