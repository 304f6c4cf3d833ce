// A worker over a device that the test controls, for the engine's tests of memory, time and faults. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/replica.h"
#include "engine/run/worker.h"
#include "engine/start/text_models.h"

namespace volley::engine {

// The rank whose device the test controls, and the number of ranks.
struct TestedRank {
  int ranks = 1, rank = 0;
};
inline std::string name_of_rank(const ::testing::TestParamInfo<TestedRank>& info) {
  return "Rank" + std::to_string(info.param.rank) + "Of" + std::to_string(info.param.ranks);
}

class WorkerTest : public ::testing::Test {
 protected:
  using WrapDevice = Replica::WrapDevice;

  // Random weights, four slots and no drafter, so that plain requests run equal steps.
  static EngineOptions plain_options() {
    EngineOptions options;
    options.device = "cpu";
    options.model_dir = "models/pocket";
    options.speculation = Speculation::kOff;
    options.dummy_weights = 1;
    options.max_num_seqs = 4;
    options.max_num_batched_tokens = 2048;  // no request waits for rows
    options.kv_pages = 400;
    options.grammar_mask_timeout_ms = 3'600'000;  // a slow machine is no failure
    options.threads = 1;
    return options;
  }

  // Makes a worker's parts. `wrap` replaces the device, also one that is made after a fault.
  WorkerParts make_parts(const EngineOptions& options, const WrapDevice& wrap = {}) {
    auto models = resolve_models(options);
    VOLLEY_CHECK_MSG(models.ok(), models.ok() ? "" : models.error().message);
    auto text = load_text(options, true);
    VOLLEY_CHECK_MSG(text.ok(), text.ok() ? "" : text.error().message);
    text_ = std::move(text).value();
    WorkerParts parts;
    parts.scheduler = models->scheduler();
    parts.remake = [options, wrap, models = *models](const auto&) -> Result<std::unique_ptr<Executor>> {
      VOLLEY_ASSIGN(std::unique_ptr<Executor> replica, Replica::create(options, models, {}, wrap));
      return replica;
    };
    auto made = parts.remake({});
    VOLLEY_CHECK_MSG(made.ok(), made.ok() ? "" : made.error().message);
    parts.replica = std::move(made).value();
    parts.tokenizer = text_.tokenizer;
    parts.verify = options.verify;
    parts.max_queue = 10;
    return parts;
  }

  static GenerateRequest request_of(int32_t prompt_tokens) {
    GenerateRequest request;
    request.prompt.assign(prompt_tokens, 7);
    request.sampling.seed = 1;
    request.max_tokens = 4;
    request.ignore_eos = true;
    return request;
  }

  std::future<Finish> submit(GenerateRequest request) {
    std::unique_ptr<text::Matcher> matcher;
    if (request.grammar) {
      auto compiled = text_.tokenizer->grammars()->compile(*request.grammar);
      EXPECT_TRUE(compiled.ok());
      matcher = std::move(compiled).value();
    }
    return submit(std::move(request), std::move(matcher), nullptr);
  }

  // `tokens`, unless null, gets the output.
  std::future<Finish> submit(GenerateRequest request, std::unique_ptr<text::Matcher> matcher,
                             std::vector<TokenId>* tokens) {
    auto ended = std::make_shared<std::promise<Finish>>();
    const auto sink = [ended, tokens](const Event& event) {
      if (tokens != nullptr) tokens->insert(tokens->end(), event.tokens.begin(), event.tokens.end());
      if (event.finish) ended->set_value(*event.finish);  // throws if it had ended already
    };
    const Status taken =
        worker_->submit({++last_id_, std::move(request), std::move(matcher), sink, RequestOutput::Clock::now()});
    // A device that failed earlier refuses the request, which also is an end.
    if (!taken.ok()) {
      Finish refused;
      refused.reason = FinishReason::kError;
      refused.error = taken.error();
      ended->set_value(std::move(refused));
    }
    return ended->get_future();
  }

  TextModels text_;
  std::unique_ptr<Worker> worker_;
  RequestId last_id_ = 0;
};

}  // namespace volley::engine
