#include "apps/commands.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "apps/client/request_pool.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/generate/request_line.h"
#include "apps/generate/result_line.h"
#include "apps/generate/text_stream.h"
#include "apps/generate/token_colours.h"
#include "apps/standard_streams.h"

namespace volley::apps {
namespace {

constexpr const char* kPrompts[] = {
    "Paul drives 23 miles each hour for 4 hours, and then 38 miles each hour for 6 more hours. The goal is 363 miles. "
    "How many miles are left?",
    "Turn the facts into JSON: Mia is 59 years old and lives in Boston. Mia has a yellow mouse.",
    "Tell me a story about a fox and a lantern.",
};
constexpr int kRepeats = 10;  // runs of the three prompts, because each answer takes only milliseconds

struct Measurement {
  RunSummary summary;
  std::vector<std::vector<TokenId>> tokens;  // each prompt's last answer
};

Result<std::vector<GenerateRequest>> demo_requests(const Engine& engine) {
  std::vector<GenerateRequest> requests;
  for (const char* prompt : kPrompts) {
    VOLLEY_ASSIGN(std::string messages, user_message_json(prompt));
    VOLLEY_ASSIGN(GenerateRequest request, build_request(engine, PromptMessages{std::move(messages)}, {}, {}));
    requests.push_back(std::move(request));
  }
  return requests;
}

class Demo {
 public:
  Demo(const DemoCommand& command, InterruptWatch* interrupt, Console* console)
      : command_(command), interrupt_(interrupt), console_(*console) {}

  Status run() {
    VOLLEY_ASSIGN(const Measurement drafted, measure(Speculation::kOn, true));
    if (interrupt_->interrupted()) return {};
    VOLLEY_ASSIGN(const Measurement plain, measure(Speculation::kOff, false));
    if (interrupt_->interrupted()) return {};
    const bool same = drafted.tokens == plain.tokens;
    std::printf("DFlash %.0f tok/s at %.1f tokens a step; plain decoding %.0f tok/s: %.2f times as fast, %s.\n",
                drafted.summary.decode_tok_s, drafted.summary.acceptance_length, plain.summary.decode_tok_s,
                drafted.summary.decode_tok_s / plain.summary.decode_tok_s,
                same ? "and token for token the same answers" : "but the answers DIFFER, which is a bug");
    if (!same) return internal_error("Speculation changed an answer: please report this with your CPU's model.");
    return {};
  }

 private:
  Result<Measurement> measure(Speculation speculation, bool show) {
    EngineFlags flags;
    flags.speculation = speculation;
    flags.base.threads = command_.threads;
    VOLLEY_ASSIGN(const EngineSetup setup, resolve_engine(flags, 1));
    DeviceFailure device(&console_);
    VOLLEY_ASSIGN(const auto engine, create_engine(setup, &console_, &device));
    auto measurement = measure(*engine, show);
    device.leave();
    return measurement;
  }

  Result<Measurement> measure(Engine& engine, bool show) {
    VOLLEY_ASSIGN(const auto requests, demo_requests(engine));
    if (show) VOLLEY_RETURN_IF_ERROR(show_answers(engine, requests));
    Measurement measurement;
    VOLLEY_RETURN_IF_ERROR(run_quietly(engine, requests, 1, &measurement));  // warms up caches and page tables
    VOLLEY_RETURN_IF_ERROR(run_quietly(engine, requests, kRepeats, &measurement));
    return measurement;
  }

  Status show_answers(Engine& engine, const std::vector<GenerateRequest>& requests) {
    RequestPool pool(engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    if (console_.colours()) std::printf("%s\n", TokenColours::legend().c_str());
    for (size_t i = 0; i < requests.size() && !interrupt_->interrupted(); ++i) {
      std::printf("\n> %s\n", kPrompts[i]);
      std::fflush(stdout);
      VOLLEY_ASSIGN(const Completion answer,
                    stream_text(engine, &pool, {requests[i], std::nullopt}, *interrupt_, console_));
      if (answer.finish.error) return *answer.finish.error;
      VOLLEY_RETURN_IF_ERROR(flush_standard_output());
    }
    std::printf("\n");
    return {};
  }

  // Runs one request at a time, without output.
  Status run_quietly(Engine& engine, const std::vector<GenerateRequest>& requests, int repeats, Measurement* into) {
    RequestPool pool(engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    into->tokens.assign(requests.size(), {});
    for (int i = 0; i < repeats * static_cast<int>(requests.size()) && !interrupt_->interrupted(); ++i) {
      const size_t which = static_cast<size_t>(i) % requests.size();
      VOLLEY_RETURN_IF_ERROR(pool.submit(i, requests[which]));
      std::vector<Completion> done;
      while (done.empty() && !interrupt_->interrupted()) done = pool.wait(std::chrono::seconds(1)).done;
      if (done.empty()) return {};
      if (done.front().finish.error) return *done.front().finish.error;
      into->tokens[which] = std::move(done.front().tokens);
    }
    into->summary = pool.summary();
    return {};
  }

  const DemoCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
};

}  // namespace

int run_demo(const DemoCommand& command, InterruptWatch* interrupt, Console* console) {
  const Status status = Demo(command, interrupt, console).run();
  if (interrupt->interrupted()) return interrupt->exit_status();
  // Checked first: a demo whose output fails ends early, and the models are not the reason.
  if (const Status flushed = flush_standard_output(); !flushed.ok())
    return console->fail(status.ok() ? flushed.error().message : status.error().message, kExitUsage);
  if (status.ok()) return kExitOk;
  return console->fail(status.error().message,
                       status.error().code == ErrorCode::kInternal ? kExitRequestsFailed : kExitModel);
}

}  // namespace volley::apps
