#include "device/cuda/faults_for_test.h"

#include <cuda_runtime.h>

#include <limits>
#include <mutex>
#include <optional>

namespace volley::cuda {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

enum class Kind { kWork, kMemory, kGraph };

struct State {
  std::mutex mutex;  // guards all variables below
  Fault fault = Fault::kRefusedWork;
  int64_t at = kNever, calls = 0;
  std::string met;
};

State& state() {
  static State state;
  return state;
}

Kind kind_of(Fault fault) {
  if (fault == Fault::kRefusedWork || fault == Fault::kLostDevice) return Kind::kWork;
  return fault == Fault::kNoMemory ? Kind::kMemory : Kind::kGraph;
}

std::optional<Fault> before(Kind kind, const char* call) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (kind == Kind::kMemory && s.fault == Fault::kLostDevice && s.calls >= s.at) return s.fault;
  if (kind != kind_of(s.fault)) return std::nullopt;
  const int64_t n = ++s.calls;
  if (n < s.at || (n > s.at && s.fault != Fault::kLostDevice)) return std::nullopt;
  if (s.met.empty()) s.met = call;
  return s.fault;
}

// The error that the runtime returns instead of doing the call.
std::optional<cudaError_t> refusal(Kind kind, const char* call) {
  const std::optional<Fault> fault = before(kind, call);
  if (!fault) return std::nullopt;
  if (*fault == Fault::kNoMemory) return cudaErrorMemoryAllocation;
  return *fault == Fault::kLostDevice ? cudaErrorUnknown : cudaErrorLaunchFailure;
}

// The address is an argument, so that the compiler cannot know that it is none.
__global__ void write_to(volatile int* address) {
  *address = 1;
}

__global__ void trap() {
  __trap();
}

// The kernel ends after a while, so that a failing test leaves no GPU busy.
__global__ void spin(uint64_t nanoseconds) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

void run_faulty_kernel(Fault fault, cudaStream_t stream) {
  if (fault == Fault::kIllegalAccess) write_to<<<1, 1, 0, stream>>>(nullptr);
  if (fault == Fault::kTrap) trap<<<1, 1, 0, stream>>>();
  if (fault == Fault::kHang) spin<<<1, 1, 0, stream>>>(uint64_t{kHangSeconds} * 1'000'000'000);
}

}  // namespace

void inject(Fault fault, int64_t n) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.fault = fault;
  s.at = n;
  s.calls = 0;
  s.met.clear();
}

int64_t calls() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.calls;
}

std::string met() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.met;
}

void inject_no_longer() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.at = kNever;
}

}  // namespace volley::cuda

// The linker gives calls of NAME to __wrap_NAME, and those of __real_NAME to NAME.
#define VOLLEY_WRAP(kind, name, parameters, ...)                                                  \
  extern "C" cudaError_t __real_##name parameters;                                                \
  extern "C" cudaError_t __wrap_##name parameters {                                               \
    if (const auto error = volley::cuda::refusal(volley::cuda::Kind::kind, #name)) return *error; \
    return __real_##name(__VA_ARGS__);                                                            \
  }

VOLLEY_WRAP(kWork, cudaLaunchKernelExC, (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
            config, kernel, arguments)
VOLLEY_WRAP(kWork, cudaMemcpyAsync,
            (void* to, const void* from, size_t bytes, cudaMemcpyKind direction, cudaStream_t stream), to, from, bytes,
            direction, stream)
VOLLEY_WRAP(kWork, cudaMemset, (void* to, int value, size_t bytes), to, value, bytes)
VOLLEY_WRAP(kWork, cudaMemsetAsync, (void* to, int value, size_t bytes, cudaStream_t stream), to, value, bytes, stream)
VOLLEY_WRAP(kWork, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), event, stream)
VOLLEY_WRAP(kWork, cudaEventQuery, (cudaEvent_t event), event)
VOLLEY_WRAP(kWork, cudaEventSynchronize, (cudaEvent_t event), event)
VOLLEY_WRAP(kWork, cudaEventElapsedTime, (float* milliseconds, cudaEvent_t from, cudaEvent_t to), milliseconds, from,
            to)
VOLLEY_WRAP(kWork, cudaStreamQuery, (cudaStream_t stream), stream)
VOLLEY_WRAP(kWork, cudaStreamSynchronize, (cudaStream_t stream), stream)
VOLLEY_WRAP(kWork, cudaGraphInstantiate, (cudaGraphExec_t * executable, cudaGraph_t graph, unsigned long long flags),
            executable, graph, flags)
VOLLEY_WRAP(kWork, cudaGraphUpload, (cudaGraphExec_t executable, cudaStream_t stream), executable, stream)
VOLLEY_WRAP(kMemory, cudaMalloc, (void** memory, size_t bytes), memory, bytes)
VOLLEY_WRAP(kMemory, cudaMallocHost, (void** memory, size_t bytes), memory, bytes)

extern "C" cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
extern "C" cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  using namespace volley::cuda;
  if (const auto error = refusal(Kind::kWork, "cudaGraphLaunch")) return *error;
  if (const auto fault = before(Kind::kGraph, "cudaGraphLaunch")) run_faulty_kernel(*fault, stream);
  return __real_cudaGraphLaunch(executable, stream);
}
