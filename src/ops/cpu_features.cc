#include "ops/cpu_features.h"

#include <hwy/targets.h>

#include "base/environment.h"

namespace volley::ops {

bool cpu_has_avx512_bf16() {
#if defined(__x86_64__)
  static const bool has = [] {
    __builtin_cpu_init();
    return !env_disable_bf16() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
  }();
  return has;
#else
  return false;
#endif
}

bool cpu_has_avx512_vbmi() {
#if defined(__x86_64__)
  return cpu_has_avx512_bf16() && __builtin_cpu_supports("avx512vbmi");
#else
  return false;
#endif
}

std::string cpu_instruction_set() {
  // The best supported target has the lowest bit.
  const int64_t supported = hwy::SupportedTargets();
  std::string name = hwy::TargetName(supported & -supported);
  if (cpu_has_avx512_bf16()) name += " + BF16";
  return name;
}

}  // namespace volley::ops
