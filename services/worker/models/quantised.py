"""Projections that stay quantised in a device's memory: from the files' matrices to what the kernels multiply with."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.cuda.module import LoadKernels
from kernels.quant_matmul.cuda import QuantMatmul, Workspace
from kernels.quant_matmul.layout import PackedWeights, pack_8_bits, pack_uneven_int4
from services.worker.models.decoder import Decoder
from services.worker.models.layer_parts import PROJECTIONS, projection, with_projection
from services.worker.models.layers import Linear
from services.worker.models.shards import NO_ORDERS, InnerOrders, Place, own_matrix, own_weights
from shared.quantization.matrix import GroupedMatrix, QuantisedMatrix, ScaledMatrix
from shared.quantization.scheme import Quantization
from shared.repository.quantised_weights import iter_quantised_weights, quantised_names, read_input_groups
from shared.repository.stored_model import StoredModel

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_DOWN = ".down_proj.weight"


@dataclass(frozen=True, slots=True)
class PackedLinear(Linear):
    """weight: on the meta device, for its shape alone. packed: what is multiplied with."""

    packed: PackedWeights | None = None


def iter_weights_but_matrices(
    model: StoredModel, quantization: Quantization, kept: dict[str, QuantisedMatrix], place: Place | None = None
) -> Iterable[tuple[str, Tensor]]:
    """Every parameter once; in the place of a quantised matrix, which goes to kept, a tensor on the meta device.

    place: of a group's rank, which gets its own parts of all. Where some of the projections that are fused are plain
    floats, all of them come dequantised. Raises what iter_weights raises.
    """
    model.verify_weights()
    orders = NO_ORDERS if place is None else inner_orders(model)
    cut = partial(own_matrix, model.config, place=place, inner_orders=orders)
    return own_weights(model.config, _all_but_matrices(model, quantization, kept, cut), place, orders)


def inner_orders(model: StoredModel) -> InnerOrders:
    """Of the feed-forwards whose inner values down has in groups that lie anywhere."""
    found = {}
    for name, group_of in read_input_groups(model, _DOWN).items():
        order = group_of.argsort(stable=True)
        if not torch.equal(order, torch.arange(len(order))):
            found[name.removesuffix(_DOWN)] = order
    return found


def _all_but_matrices(
    model: StoredModel,
    quantization: Quantization,
    kept: dict[str, QuantisedMatrix],
    cut: Callable[[str, QuantisedMatrix], QuantisedMatrix],
) -> Iterator[tuple[str, Tensor]]:
    """Whole ones. cut: makes of a matrix what is kept of it."""
    names = quantised_names(model, quantization)
    for name, values in iter_quantised_weights(model, quantization):
        if isinstance(values, Tensor):
            yield name, values
        elif set(_fused_with(name)) <= names:
            kept[name] = cut(name, values)
            yield name, torch.empty(model.config.parameter_shapes()[name], device="meta")
        else:
            yield name, values.dequantise()


def pack_projections(decoder: Decoder, kept: dict[str, QuantisedMatrix], dtype: torch.dtype) -> Decoder:
    """The decoder with the matrices of kept, which is empty afterwards, packed on the decoder's device.

    Those that the kernels cannot compute, or whose parts have their inputs in different orders, are dequantised.
    """
    device = decoder.embedding.device
    layers = []
    for layer in decoder.layers:
        for name in PROJECTIONS:
            linear = projection(layer, name)
            if linear.weight.is_meta:
                matrices = [kept.pop(part) for part in linear.names]
                layer = with_projection(layer, name, _packed(linear, matrices, device, dtype))
        layers.append(layer)
    return replace(decoder, layers=layers)


def _packed(linear: Linear, matrices: Sequence[QuantisedMatrix], device: torch.device, dtype: torch.dtype) -> Linear:
    packed = pack_fused(matrices)
    if packed is None:
        weight = torch.cat([matrix.dequantise() for matrix in matrices])
        return replace(linear, weight=weight.to(device=device, dtype=dtype))
    return PackedLinear(linear.weight, linear.bias, linear.names, packed.to(device))


def pack_fused(matrices: Sequence[QuantisedMatrix]) -> PackedWeights | None:
    """Matrices of the same inputs, below one another; None where they do not go together or have no kernel."""
    try:
        grouped = [matrix for matrix in matrices if isinstance(matrix, GroupedMatrix)]
        if grouped:
            first = grouped[0]
            if not all(torch.equal(matrix.group_of, first.group_of) for matrix in grouped):
                return None
            parts = ([getattr(matrix, name) for matrix in grouped] for name in ("codes", "scales", "zeros"))
            codes, scales, zeros = (torch.cat(part) for part in parts)
            return pack_uneven_int4(codes, scales, zeros, first.group_of)
        scaled = [matrix for matrix in matrices if isinstance(matrix, ScaledMatrix)]
        values = torch.cat([matrix.values.view(torch.uint8) for matrix in scaled]).view(scaled[0].values.dtype)
        return pack_8_bits(values, torch.cat([matrix.scales for matrix in scaled]))
    except ValueError:
        return None


class QuantisedProducts:
    """The products of a decoder's packed projections."""

    def __init__(
        self, load: LoadKernels, decoder: Decoder, dtype: torch.dtype, max_rows: int, num_processors: int
    ) -> None:
        """max_rows: tokens of a step. num_processors: multiprocessors of the device."""
        packed = list(_all_packed(decoder))
        device = decoder.embedding.device
        self._products: Mapping[str, QuantMatmul] = {
            encoding: QuantMatmul(load, dtype, encoding) for encoding in {weights.encoding for weights in packed}
        }
        most_inputs = max((weights.num_inputs for weights in packed if weights.order is not None), default=0)
        self._workspace = Workspace(dtype, num_processors, device, max_rows if most_inputs else 0, most_inputs)

    def __call__(self, out: Tensor, x: Tensor, linear: Linear, packed: PackedWeights) -> None:
        """[T, n_in] to out, [T, n_out]."""
        self._products[packed.encoding](out, x, packed, self._workspace, linear.bias)


def _all_packed(decoder: Decoder) -> Iterator[PackedWeights]:
    for layer in decoder.layers:
        for name in PROJECTIONS:
            linear = projection(layer, name)
            if isinstance(linear, PackedLinear) and linear.packed is not None:
                yield linear.packed


def _fused_with(name: str) -> list[str]:
    """Names of the weights that are fused with this one, itself included."""
    part = name.split(".")[-2]
    for parts in _FUSED:
        if part in parts:
            return [name.replace(part, other) for other in parts]
    return [name]
