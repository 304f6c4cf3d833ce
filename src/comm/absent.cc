// Groups on GPUs, in a build without CUDA.
#include "comm/comm.h"
#include "comm/row_exchange.h"

namespace volley::comm {

namespace {

Error without_cuda() {
  return unimplemented("This program was built without CUDA: build it with `make cuda`, or use --device cpu.");
}

}  // namespace

Result<Group> make_cuda_group(const std::vector<int>&, const CudaGroupOptions&) {
  return without_cuda();
}

Result<Group> make_nccl_group(int, int, const std::vector<int>&, std::vector<NodeLink>, const CudaGroupOptions&) {
  return without_cuda();
}

Result<RowExchanges> make_cuda_row_exchanges(const std::vector<int>&, int64_t, int64_t) {
  return without_cuda();
}

Result<std::string> nccl_version() {
  return without_cuda();
}

}  // namespace volley::comm
