// Requests of every kind that a process which computes for another one must hear of, and what comes of them.
#pragma once

#include <vector>

#include "harness.h"

namespace volley::testing {

std::vector<GenerateRequest> all_kinds(const Engine& engine);

// Tokens, steps and logprobs, and no error. what: for the message.
void expect_the_same(const std::vector<Output>& outputs, const std::vector<Output>& expected, const char* what);

}  // namespace volley::testing
