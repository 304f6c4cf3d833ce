#include "comm/nccl_api.h"

#include <dlfcn.h>

#include "base/environment.h"
#include "comm/comm.h"

namespace volley::comm {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
// Older versions check for an abort only after a million polls, each time anew.
constexpr int kOldest = 22602, kTooNew = 30000;

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Error unavailable(const std::string& why) {
  return {ErrorCode::kUnavailable,
          "--nnodes on GPUs needs NCCL 2.26.2 or later, and " + why +
              ". Install it (libnccl2 of NVIDIA's repository; or pip install nvidia-nccl-cu13, with its folder lib in "
              "LD_LIBRARY_PATH), or use --device cpu."};
}

template <typename F>
void find(void* library, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
}

Result<NcclApi> load() {
  set_nccl_defaults();
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // loaded for the life of the process
  if (library == nullptr) {
    const char* why = ::dlerror();
    return unavailable("it cannot be loaded (" + std::string(why == nullptr ? kLibrary : why) + ")");
  }
  NcclApi api;
  std::string missing;
  find(library, "ncclGetVersion", api.get_version, missing);
  find(library, "ncclGetUniqueId", api.get_unique_id, missing);
  find(library, "ncclCommInitRank", api.comm_init_rank, missing);
  find(library, "ncclCommAbort", api.comm_abort, missing);
  find(library, "ncclCommGetAsyncError", api.comm_get_async_error, missing);
  find(library, "ncclGetErrorString", api.get_error_string, missing);
  find(library, "ncclGetLastError", api.get_last_error, missing);
  find(library, "ncclAllGather", api.all_gather, missing);
  find(library, "ncclSend", api.send, missing);
  find(library, "ncclRecv", api.receive, missing);
  find(library, "ncclGroupStart", api.group_start, missing);
  find(library, "ncclGroupEnd", api.group_end, missing);
  if (!missing.empty()) return unavailable(std::string(kLibrary) + " has no " + missing);
  if (api.get_version(&api.version) != NcclResult::kSuccess) {
    return unavailable(std::string(kLibrary) + " does not tell its version");
  }
  if (api.version < kOldest || api.version >= kTooNew) {
    return unavailable(std::string(kLibrary) + " is version " + version_text(api.version));
  }
  return api;
}

}  // namespace

std::string NcclApi::describe(NcclResult result) const {
  std::string text = get_error_string(result);
  const char* last = get_last_error(nullptr);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  while (text.ends_with('\n') || text.ends_with('.')) text.pop_back();
  return text;
}

Result<const NcclApi*> load_nccl() {
  static const Result<NcclApi> loaded = load();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

Result<std::string> nccl_version() {
  VOLLEY_ASSIGN(const NcclApi* api, load_nccl());
  return version_text(api->version);
}

}  // namespace volley::comm
