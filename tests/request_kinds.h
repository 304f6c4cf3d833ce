// Requests of every kind that must reach a process which computes for another one, and their results.
#pragma once

#include <vector>

#include "harness.h"

namespace volley::testing {

std::vector<GenerateRequest> all_kinds(const Engine& engine);

// Tokens, steps and logprobs, and no error. what: for the message.
void expect_the_same(const std::vector<Output>& outputs, const std::vector<Output>& expected, const char* what);

}  // namespace volley::testing
