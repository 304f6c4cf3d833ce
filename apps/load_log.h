// What an operator reads of a server's work: one line when it starts, and one now and then while it works.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <functional>
#include <string>

#include "apps/ticker.h"

namespace volley::apps {

struct ServedModel {
  std::string name, draft_name;  // in the API; of the drafter's folder, empty without one
  std::string url;
  size_t api_keys = 0;
};

// "Serving pocket on cpu at http://127.0.0.1:8000 (API and page): bfloat16, …"
std::string start_line(const EngineInfo& info, const ServedModel& served);

// What was done between two snapshots, `seconds` apart; empty if nothing was and nothing runs.
std::string load_line(const EngineStats& before, const EngineStats& now, double seconds);

// Says load_line() every `interval`, from a thread of its own. What it is given must outlive it.
class LoadLog {
 public:
  using Say = std::function<void(const std::string&)>;
  LoadLog(const Engine& engine, std::chrono::milliseconds interval, Say say);

 private:
  void tick();

  const Engine& engine_;
  const Say say_;
  EngineStats before_;
  std::chrono::steady_clock::time_point last_;
  Ticker ticker_;  // last: it uses the others
};

}  // namespace volley::apps
