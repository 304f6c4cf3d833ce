#include "device/kernel_times.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace volley {
namespace {

constexpr const char* kLibrary = "libcupti.so.13";
constexpr int kKernels = 10;  // the kind of activity: kernels that may run side by side
constexpr size_t kBufferBytes = size_t{4} << 20;

// Where a record of a kernel has what is read here (CUPTI 12 and 13: CUpti_ActivityKernel9 and 10).
constexpr size_t kKindAt = 0, kBeginAt = 16, kEndAt = 24, kDeviceAt = 40, kNameAt = 104, kGraphAt = 156;

struct Cupti {
  int (*register_callbacks)(void (*)(uint8_t**, size_t*, size_t*), void (*)(void*, uint32_t, uint8_t*, size_t, size_t));
  int (*enable)(int kind);
  int (*flush_all)(uint32_t forced);
  int (*next_record)(uint8_t* buffer, size_t valid, uint8_t** record);
};

struct Recorded {
  Cupti cupti = {};
  std::mutex mutex;  // guards what follows
  std::vector<KernelRun> runs;
  std::set<std::string> names;
  std::optional<uint32_t> device;  // the one whose kernels are kept: all ranks have the same
};

Recorded& recorded() {
  static Recorded* const all = new Recorded;  // never destroyed: CUPTI may bring a buffer while the process ends
  return *all;
}

template <typename T>
T field(const uint8_t* record, size_t at) {
  T value;
  std::memcpy(&value, record + at, sizeof(value));
  return value;
}

void lend_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *size = kBufferBytes;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *most_records = 0;
}

void read_buffer(void* /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/, size_t valid) {
  Recorded& all = recorded();
  const std::lock_guard lock(all.mutex);
  for (uint8_t* record = nullptr; all.cupti.next_record(buffer, valid, &record) == 0;) {
    if (field<int>(record, kKindAt) != kKernels) continue;
    const auto device = field<uint32_t>(record, kDeviceAt);
    if (all.device.value_or(device) != device) continue;
    all.device = device;
    const char* name = field<const char*>(record, kNameAt);
    all.runs.push_back({*all.names.insert(name == nullptr ? "" : name).first, field<uint64_t>(record, kBeginAt),
                        field<uint64_t>(record, kEndAt), field<uint32_t>(record, kGraphAt)});
  }
  std::free(buffer);
}

Error unavailable(const std::string& why) {
  return {ErrorCode::kUnavailable,
          "--kernel-times needs CUPTI 13, and " + why +
              ". Install it (it comes with the CUDA toolkit; or pip install nvidia-cuda-cupti, with its folder lib in "
              "LD_LIBRARY_PATH)."};
}

}  // namespace

Status start_kernel_times() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // loaded for the life of the process
  if (library == nullptr) return unavailable(std::string(kLibrary) + " cannot be loaded");
  Cupti& cupti = recorded().cupti;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  if (!find("cuptiActivityRegisterCallbacks", cupti.register_callbacks) || !find("cuptiActivityEnable", cupti.enable) ||
      !find("cuptiActivityFlushAll", cupti.flush_all) || !find("cuptiActivityGetNextRecord", cupti.next_record)) {
    return unavailable(std::string(kLibrary) + " lacks a function");
  }
  if (cupti.register_callbacks(lend_buffer, read_buffer) != 0 || cupti.enable(kKernels) != 0) {
    return unavailable("it refuses to record kernels here");
  }
  return {};
}

std::vector<KernelRun> take_kernel_times() {
  Recorded& all = recorded();
  if (all.cupti.flush_all != nullptr) all.cupti.flush_all(1);
  const std::lock_guard lock(all.mutex);
  std::vector<KernelRun> runs = std::exchange(all.runs, {});
  std::ranges::sort(runs, {}, &KernelRun::begin_ns);
  return runs;
}

}  // namespace volley
