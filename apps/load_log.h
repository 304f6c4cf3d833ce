// What an operator reads of a server's work: one line when it starts, and one now and then while it works.
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
  std::string name, draft_name;  // in the API; of the drafter's folder, empty without one
  std::string url;
  size_t api_keys = 0;
  std::string ends = {};                             // ends_text() of its end-of-sequence ids
  std::optional<SamplingParams> chat_sampling = {};  // of serve::ServerOptions
};

// "<|im_end|> (2) and <|endoftext|> (0)": the tokens that end an answer; "no token" where there are none.
std::string ends_text(std::span<const TokenId> ids, const std::function<std::string(TokenId)>& spelled);

// "Serving pocket on cpu at http://127.0.0.1:8000 (API and page): bfloat16, …"
std::string start_line(const EngineInfo& info, const ServedModel& served);

// How to start coding agents against the server; docs/agents.md has the other ones.
std::string agents_text(const ServedModel& served);

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
