// For tests of kernels that Highway compiles once per instruction set: runs a body on each that this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <string>

#include <hwy/highway.h>

namespace volley::ops {

// `body` runs once per instruction set that was built and that this CPU has, from the best down.
template <typename Body>
void for_each_instruction_set(Body&& body) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(std::string("instruction set ") + hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace volley::ops
