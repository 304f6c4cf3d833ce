// CPU features beyond those that Highway 1.0.3 dispatches on. Read once; the environment variable VOLLEY_DISABLE_BF16
// (base/environment.h) hides the bf16 dot product, so that tests on a machine that has it also run the other path.
#pragma once

#include <string>

namespace volley::ops {

// AVX-512 BF16 (vdpbf16ps), and all parts of AVX-512 that the kernels beside it use (F, BW, VL, DQ).
bool cpu_has_avx512_bf16();

// The same with look-ups of bytes in tables of 128 (VBMI): every CPU with vdpbf16ps except Cooper Lake.
bool cpu_has_avx512_vbmi();

// E.g. "AVX3 + BF16", "AVX2", "SSE4": the instruction set of this process's kernels.
std::string cpu_instruction_set();

}  // namespace volley::ops
