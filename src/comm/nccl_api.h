// The few NCCL functions that are used, loaded at run time: builds need no NCCL, and programs need it only if ranks are
// GPUs of several processes. Names and numbers are those of NCCL's own header, unchanged from 2.18 to 2.28.
#pragma once

#include <cuda_runtime_api.h>
#include <volley/result.h>

#include <cstddef>
#include <string>

namespace volley::comm {

struct NcclComm;  // NCCL's own
struct NcclUniqueId {
  std::byte bytes[128];
};

enum class NcclResult : int { kSuccess = 0, kRemoteError = 6, kInProgress = 7 };  // others are errors, too
enum class NcclType : int { kFloat = 7 };

// Threads: one at a time uses a communicator. Works of a communicator run in the order of the stream, whether they are
// recorded or not.
struct NcclApi {
  NcclResult (*get_version)(int*) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  NcclResult (*comm_init_rank)(NcclComm**, int ranks, NcclUniqueId, int rank) = nullptr;
  NcclResult (*comm_abort)(NcclComm*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclComm*, NcclResult*) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclComm*) = nullptr;
  NcclResult (*all_gather)(const void* from, void* to, size_t of_each, NcclType, NcclComm*, cudaStream_t) = nullptr;
  NcclResult (*send)(const void* from, size_t, NcclType, int to_rank, NcclComm*, cudaStream_t) = nullptr;
  NcclResult (*receive)(void* to, size_t, NcclType, int from_rank, NcclComm*, cudaStream_t) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  int version = 0;  // 10,000 times the major number, 100 times the minor one

  // The error's name, with NCCL's text about its last error.
  std::string describe(NcclResult result) const;
};

// Loads NCCL at the first call, without NVLink multicast unless the user asked for it. Threads: any. kUnavailable, with
// advice: NCCL is missing, too old or too new.
Result<const NcclApi*> load_nccl();

}  // namespace volley::comm
