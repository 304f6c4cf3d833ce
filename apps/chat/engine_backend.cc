#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>

#include "apps/chat/chat_backend.h"
#include "apps/client/request_pool.h"
#include "apps/generate/answer_parts.h"
#include "serve/harmony.h"
#include "serve/harmony_prompt.h"
#include "serve/output_parser.h"

namespace volley::apps {
namespace {

class EngineBackend final : public ChatBackend {
 public:
  EngineBackend(Engine& engine, std::string name, const serve::OutputFormat& format)
      : engine_(engine), name_(std::move(name)), format_(format), pool_(engine) {}

  std::string name() const override { return name_; }
  bool knows_origins() const override { return engine_.info().block_size > 1; }
  void stop() override {
    stopped_ = true;
    pool_.wake();
  }

  Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings,
                            const OnSpan& on_span) override {
    stopped_ = false;
    ChatMessages chat;
    chat.messages_json = conversation.messages_json();
    if (settings.thinking) {
      chat.template_kwargs_json = nlohmann::json({{"enable_thinking", *settings.thinking}}).dump();
    }
    VOLLEY_ASSIGN(const std::string prompt, serve::render_chat_prompt(engine_, format_, chat));
    GenerateRequest request;
    request.sampling = engine_.info().default_sampling;
    VOLLEY_ASSIGN(request.prompt, serve::encode_chat(engine_, format_, prompt, false, {}));
    apply_settings(settings.sampling, &request);
    serve::OutputParser::Options options;
    if (format_.harmony) {
      auto start = serve::HarmonyReader::after(engine_, *format_.harmony, request.prompt);
      serve::plan_harmony(*format_.harmony, std::make_shared<serve::HarmonyReader>(std::move(start)), format_.reasoning,
                          request, options);
    } else {
      options.reasoning = serve::reasoning_start(format_, prompt);
    }
    serve::OutputParser parser(options);
    VOLLEY_RETURN_IF_ERROR(pool_.submit(0, std::move(request), true));
    return run(&parser, on_span);
  }

 private:
  Result<ChatAnswer> run(serve::OutputParser* parser, const OnSpan& on_span) {
    ChatAnswer answer;
    TokenColours colours([this](std::span<const TokenId> ids) { return engine_.decode(ids, true); });
    const auto show = [&](const serve::OutputDelta& delta, TokenColours::Origin origin) {
      answer.reasoning += delta.reasoning;
      answer.content += delta.content;
      if (!delta.reasoning.empty()) on_span({delta.reasoning, origin, true});
      if (!delta.content.empty()) on_span({delta.content, origin, false});
    };
    for (;;) {
      if (stopped_.exchange(false)) pool_.cancel_all();
      RequestPool::News news = pool_.wait(std::chrono::seconds(1));
      for (const Event& event : news.streamed) {
        parse_event(event, format_.harmony.get(), colours, *parser, show);
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
  RequestPool pool_;
  std::atomic<bool> stopped_{false};
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> make_engine_backend(Engine& engine, const std::string& name) {
  VOLLEY_ASSIGN(const serve::OutputFormat format, serve::find_output_format(engine, "none", "auto"));
  return std::unique_ptr<ChatBackend>(std::make_unique<EngineBackend>(engine, name, format));
}

}  // namespace volley::apps
