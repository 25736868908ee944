"""What --quantization means for a stored model."""

from kernels.linear.packing_blocks import RawBlocks
from services.worker.engine.options import EngineError, EngineOptions
from services.worker.models.packers import BlockPacker, Int8Packer, Packer
from shared.repository.raw_blocks import iter_raw_blocks
from shared.repository.stored_model import StoredModel


def packer_for(model: StoredModel, options: EngineOptions) -> Packer | None:
    """None for weights as they are. Raises EngineError where the model's file cannot be used so."""
    if options.quantization == "none":
        return None
    if options.quantization == "int8":
        return Int8Packer()
    if model.weight_format != "gguf":
        raise EngineError(f"quantization gguf needs a GGUF file; the weights of {model.name} are {model.weight_format}")
    return BlockPacker({name: RawBlocks(kind, data) for name, kind, data in iter_raw_blocks(model)})
