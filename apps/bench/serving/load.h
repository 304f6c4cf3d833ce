// Sends prepared requests to an endpoint at a given concurrency or rate. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "apps/bench/serving/answer_stream.h"
#include "apps/client/http_client.h"

namespace volley::apps {

// Exactly one of the two is above 0.
struct LoadShape {
  int concurrency = 0;      // requests open at once: each end starts the next
  double request_rate = 0;  // a second: starts are a Poisson process, however many requests are open
};

// When each of `count` requests starts, in seconds: exponential gaps with a mean of 1 / rate. The same for the same
// seed on every machine.
std::vector<double> poisson_starts(double rate, size_t count, uint64_t seed);

struct LoadResult {
  std::vector<AnswerRecord> records;  // in the order of their ends
  double wall_s = 0;                  // from the first start to the last end
};

struct LoadHooks {
  std::function<HttpCall(size_t index)> make_call;
  std::function<bool()> stopped;           // asked often; true drops what is open
  std::function<void(size_t done)> ended;  // after each answer
};

// Requests 0 to count - 1. `seed`: of the starts at a rate.
LoadResult run_load(HttpClient* client, const LoadShape& shape, size_t count, uint64_t seed, const LoadHooks& hooks);

}  // namespace volley::apps
