#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/chat/chat_backend.h"
#include "apps/client/request_pool.h"
#include "apps/generate/answer_parts.h"
#include "serve/api/chat_input.h"
#include "serve/api/chat_messages.h"

namespace volley::apps {
namespace {

class EngineBackend final : public ChatBackend {
 public:
  EngineBackend(Engine& engine, std::string name, const serve::OutputFormat& format, AnswerDefaults defaults)
      : engine_(engine), name_(std::move(name)), format_(format), defaults_(std::move(defaults)), pool_(engine) {
    defaults_.thinking = format.thinks_by_default;
  }

  std::string name() const override { return name_; }
  bool knows_origins() const override { return engine_.info().block_size > 1; }
  void stop() override {
    stopped_ = true;
    pool_.wake();
  }

  const AnswerDefaults& defaults() const override { return defaults_; }
  Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings, const OnSpan& on_span,
                            const OnWait& on_wait) override {
    stopped_ = false;
    const Waiting waiting{on_wait, Clock::now(), engine_.stats().prompt_tokens};
    VOLLEY_ASSIGN(serve::Conversation chat, serve::conversation_of({.messages_json = conversation.messages_json()},
                                                                   engine_.info().pictures.has_value()));
    if (settings.thinking) {
      chat.template_kwargs_json = nlohmann::json({{"enable_thinking", *settings.thinking}}).dump();
    }
    VOLLEY_ASSIGN(ChatPrompt prompt, serve::chat_prompt(engine_, *format_.answers, std::move(chat), nullptr));
    GenerateRequest request;
    request.sampling = *defaults_.sampling;
    request.prompt = std::move(prompt.tokens);
    request.pictures = std::move(prompt.pictures);
    apply_settings(settings.sampling, &request);
    serve::OutputParser parser(serve::plan_answer(engine_, format_, prompt.text, request));
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    VOLLEY_RETURN_IF_ERROR(pool_.submit(0, std::move(request), true));
    return run(&parser, on_span, waiting, prompt_tokens);
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Waiting {
    const OnWait& on_wait;
    Clock::time_point since;
    int64_t computed_before;  // prompt tokens in the engine's counter
  };

  void tell(const Waiting& waiting, int64_t prompt_tokens) {
    const std::chrono::duration<double> seconds = Clock::now() - waiting.since;
    const int64_t computed = engine_.stats().prompt_tokens - waiting.computed_before;
    waiting.on_wait({seconds.count(), prompt_tokens, std::clamp<int64_t>(computed, 0, prompt_tokens)});
  }

  Result<ChatAnswer> run(serve::OutputParser* parser, const OnSpan& on_span, const Waiting& waiting,
                         int64_t prompt_tokens) {
    ChatAnswer answer;
    TokenColours colours([this](std::span<const TokenId> ids) { return engine_.decode(ids, true); });
    const auto show = [&](const serve::OutputDelta& delta, TokenColours::Origin origin) {
      answer.reasoning += delta.reasoning();
      answer.content += delta.content();
      if (!delta.reasoning().empty()) on_span({delta.reasoning(), origin, true});
      if (!delta.content().empty()) on_span({delta.content(), origin, false});
    };
    for (;;) {
      if (stopped_.exchange(false)) pool_.cancel_all();
      RequestPool::News news = pool_.wait(kChatWake);
      tell(waiting, prompt_tokens);
      for (const Event& event : news.streamed) {
        parse_event(event, colours, *parser, show);
      }
      if (news.done.empty()) continue;
      show(parser->finish(), TokenColours::Origin::kUnknown);
      const Finish& finish = news.done.front().finish;
      answer.finish = finish.reason;
      answer.error = finish.error;
      answer.stats = stats_of(finish);
      return answer;
    }
  }

  static ChatStats stats_of(const Finish& finish) {
    ChatStats stats{
        finish.usage.prompt_tokens, finish.usage.cached_tokens, finish.usage.completion_tokens, std::nullopt,
        finish.usage.ttft_s,        finish.usage.total_s};
    if (const auto& steps = finish.tokens_per_step; !steps.empty()) {
      stats.tokens_per_step = static_cast<double>(std::accumulate(steps.begin(), steps.end(), int64_t{0})) /
                              static_cast<double>(steps.size());
    }
    return stats;
  }

  Engine& engine_;
  const std::string name_;
  const serve::OutputFormat format_;
  AnswerDefaults defaults_;
  RequestPool pool_;
  std::atomic<bool> stopped_{false};
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> make_engine_backend(Engine& engine, const std::string& name,
                                                         AnswerDefaults defaults) {
  VOLLEY_ASSIGN(const serve::OutputFormat format, serve::find_output_format(engine, "none", "auto"));
  return std::unique_ptr<ChatBackend>(std::make_unique<EngineBackend>(engine, name, format, std::move(defaults)));
}

}  // namespace volley::apps
