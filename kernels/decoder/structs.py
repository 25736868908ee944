"""The C++ side's structs; decoder.h says what each field means."""

import ctypes

from kernels.linear.packing import LinearStruct


class LayerStruct(ctypes.Structure):
    """struct Layer."""

    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("feed_forward_norm", ctypes.c_void_p),
        ("query_key_value", LinearStruct),
        ("output", LinearStruct),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("sliding_window", ctypes.c_int32),
    )


class DecoderStruct(ctypes.Structure):
    """struct Decoder."""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden_size", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("inner_size", ctypes.c_int32),
        ("vocab_size", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("max_num_tokens", ctypes.c_int32),
        ("max_num_seqs", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("layers", ctypes.POINTER(LayerStruct)),
        ("final_norm", ctypes.c_void_p),
        ("embedding", LinearStruct),
        ("lm_head", LinearStruct),
        ("cos_sin", ctypes.c_void_p),
        ("kv_cache", ctypes.c_void_p),
        ("num_blocks", ctypes.c_int64),
    )


class StepStruct(ctypes.Structure):
    """struct Step."""

    _fields_ = (
        ("num_tokens", ctypes.c_int32),
        ("num_sequences", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("block_table_stride", ctypes.c_int32),
        ("token_ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("cu_seqlens_q", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("row_tokens", ctypes.c_void_p),
        ("logits_slots", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("likeliest", ctypes.c_void_p),
        ("token_is_finite", ctypes.c_void_p),
    )
