// VOLLEY_HOST_DEVICE marks functions whose one source serves host and device: nothing to a compiler of C++ alone.
#pragma once

#ifdef __CUDACC__
#define VOLLEY_HOST_DEVICE __host__ __device__
#else
#define VOLLEY_HOST_DEVICE
#endif
