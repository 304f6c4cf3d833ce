#include "apps/bench/serving/load.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

namespace volley::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestWait{100};

}  // namespace

std::vector<double> poisson_starts(double rate, size_t count, uint64_t seed) {
  // Only the generators of <random> give the same numbers everywhere; the distributions do not.
  std::mt19937_64 random(seed);
  std::vector<double> starts;
  double at = 0;
  for (size_t i = 0; i < count; ++i) {
    starts.push_back(at);
    const double u = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;  // in (0, 1)
    at += -std::log(u) / rate;
  }
  return starts;
}

LoadResult run_load(HttpClient* client, const LoadShape& shape, size_t count, uint64_t seed, const LoadHooks& hooks) {
  LoadResult result;
  const std::vector<double> starts =
      shape.request_rate > 0 ? poisson_starts(shape.request_rate, count, seed) : std::vector<double>();
  const auto begin = Clock::now();
  auto end = begin;
  const auto start_of = [&](size_t index) {
    return begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(starts[index]));
  };
  const auto may_start = [&](size_t index) {
    return starts.empty() ? client->open() < shape.concurrency : Clock::now() >= start_of(index);
  };
  for (size_t next = 0; result.records.size() < count && !hooks.stopped();) {
    for (; next < count && may_start(next); ++next) {
      HttpCall call = hooks.make_call(next);
      auto stream = std::make_shared<AnswerStream>(next, Clock::now());
      client->start(
          std::move(call), [stream](std::string_view bytes, Clock::time_point now) { stream->read(bytes, now); },
          [stream, &result, &hooks, &end](int status, const std::string& failure, Clock::time_point now) {
            result.records.push_back(stream->end(status, failure, now));
            end = now;
            hooks.ended(result.records.size());
          });
    }
    auto limit = kLongestWait;
    if (!starts.empty() && next < count) {
      const auto until = std::chrono::ceil<std::chrono::milliseconds>(start_of(next) - Clock::now());
      limit = std::clamp(until, std::chrono::milliseconds(0), kLongestWait);
    }
    client->poll(limit);
  }
  client->cancel_all();
  result.wall_s = std::chrono::duration<double>(end - begin).count();
  return result;
}

}  // namespace volley::apps
