"""Random quantised matrices, and what formats say of them, number by number."""

import torch

from shared.quantization.matrix import GroupedMatrix, ScaledMatrix, groups_in_order


def grouped(
    n_out: int, n_in: int, group_size: int, *, seed: int = 1, desc_act: bool = False, order_seed: int = 1
) -> GroupedMatrix:
    """Codes and zeros of all kinds, positive scales.

    desc_act: inputs belong to groups in random order, of order_seed, as those of fused matrices do: the same one.
    """
    random, order_random = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(order_seed)
    num_groups = n_in // group_size
    group_of = groups_in_order(n_in, group_size)
    return GroupedMatrix(
        codes=torch.randint(0, 16, (n_out, n_in), generator=random, dtype=torch.uint8),
        scales=(torch.rand((n_out, num_groups), generator=random) * 0.02 + 0.001).half(),
        zeros=torch.randint(0, 16, (n_out, num_groups), generator=random, dtype=torch.uint8),
        group_of=group_of[torch.randperm(n_in, generator=order_random)] if desc_act else group_of,
    )


def scaled(n_out: int, n_in: int, dtype: torch.dtype, *, seed: int = 1) -> ScaledMatrix:
    """Values over all of int8 but -128, or all finite e4m3 numbers, some of them subnormal."""
    random = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        values = torch.randint(-127, 128, (n_out, n_in), generator=random, dtype=torch.int8)
    else:
        codes = torch.randint(0, 127, (n_out, n_in), generator=random, dtype=torch.uint8)
        signs = torch.randint(0, 2, (n_out, n_in), generator=random, dtype=torch.uint8) * 128
        values = (codes + signs).view(torch.float8_e4m3fn)
    return ScaledMatrix(values, torch.rand(n_out, generator=random) * 0.01 + 1e-4)
