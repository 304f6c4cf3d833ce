// For functions whose one source serves host and device; to a compiler of C++ alone the macros are nothing.
#pragma once

#ifdef __CUDACC__
#define VOLLEY_HOST_DEVICE __host__ __device__
#define VOLLEY_UNROLL _Pragma("unroll")  // before a loop whose arrays must lie in registers
#else
#define VOLLEY_HOST_DEVICE
#define VOLLEY_UNROLL
#endif
