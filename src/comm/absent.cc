// Groups on GPUs, in a build without CUDA.
#include "comm/comm.h"

namespace volley::comm {

Result<Group> make_cuda_group(const std::vector<int>&, const CudaGroupOptions&) {
  return unimplemented("This program was built without CUDA: build it with `make cuda`, or use --device cpu.");
}

}  // namespace volley::comm
