// Attention over the paged cache: one query a sequence (decode), several (prefill), and the merge of split sequences.
#include "kernels/paged_attention/decode_mma.cuh"
#include "kernels/paged_attention/decode_simt.cuh"
#include "kernels/paged_attention/merge.cuh"
#include "kernels/paged_attention/prefill_mma.cuh"
