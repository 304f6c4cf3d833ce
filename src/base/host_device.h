// For functions whose one source serves host and device; for a plain C++ compiler the macros are empty.
#pragma once

#ifdef __CUDACC__
#define VOLLEY_HOST_DEVICE __host__ __device__
#define VOLLEY_UNROLL _Pragma("unroll")  // before a loop whose arrays must lie in registers
#else
#define VOLLEY_HOST_DEVICE
#define VOLLEY_UNROLL
#endif
