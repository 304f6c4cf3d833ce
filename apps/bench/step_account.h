// `volley bench --kernel-times`: what the time of a step went to, of the kernels that a GPU ran.
#pragma once

#include <span>
#include <string>

#include "device/kernel_times.h"

namespace volley::apps {

// A table of the mean step that only decodes: by kind of kernel the milliseconds in which it alone kept the device from
// being done, for the target and the drafter, and how many kernels there were; and the waits between kernels. Kernels
// overlap, so a kernel's own time is counted from the end of those before it. The parts add up to the step.
std::string step_account(std::span<const KernelRun> runs);

}  // namespace volley::apps
