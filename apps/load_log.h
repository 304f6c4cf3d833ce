// The server's log for its operator: one line at the start, and one now and then under load.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "apps/ticker.h"

namespace volley::apps {

struct ServedModel {
  std::string name, draft_name;  // in the API; the drafter's folder, empty without one
  std::string url;
  size_t api_keys = 0;
  std::string ends = {};                             // ends_text() of its end-of-sequence ids
  std::optional<SamplingParams> chat_sampling = {};  // from serve::ServerOptions
};

// "<|im_end|> (2) and <|endoftext|> (0)": the tokens that end an answer; "no token" if there are none.
std::string ends_text(std::span<const TokenId> ids, const std::function<std::string(TokenId)>& spelled);

// "Serving pocket on cpu at http://127.0.0.1:8000 (API and page): bfloat16, …"
std::string start_line(const EngineInfo& info, const ServedModel& served);

// Says how to start coding agents on the server; docs/agents.md has more of them.
std::string agents_text(const ServedModel& served);

// The work between two snapshots, `seconds` apart; empty if there was none and no request runs.
std::string load_line(const EngineStats& before, const EngineStats& now, double seconds);

// Logs load_line() every `interval`, on a thread of its own. Its arguments must outlive it.
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
  Ticker ticker_;  // last, because it uses the others
};

}  // namespace volley::apps
