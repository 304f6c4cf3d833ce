// Tensor maps: how the copy engine of sm_90 finds a box of a matrix in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace volley::cuda {

// A row-major bf16 matrix [rows, columns], read in boxes of [box_rows, 64] that arrive with the 128-byte swizzle.
// REQUIRES: data on 16 bytes, columns a multiple of 8, box_rows at most 256.
CUtensorMap bf16_matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows);
// The same of single bytes, in boxes of [box_rows, 128]. REQUIRES: columns a multiple of 16; the rest as above.
CUtensorMap byte_matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows);

}  // namespace volley::cuda
