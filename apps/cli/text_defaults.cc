#include "apps/cli/text_defaults.h"

#include <utility>

#include "base/text.h"
#include "families/generation.h"
#include "text/template_file.h"

namespace volley::apps {
namespace {

class EngineWithDefaults final : public Engine {
 public:
  EngineWithDefaults(std::unique_ptr<Engine> engine, TextDefaults defaults)
      : engine_(std::move(engine)), defaults_(std::move(defaults)), info_(engine_->info()) {
    if (defaults_.sampling) info_.default_sampling = *defaults_.sampling;
  }

  Result<RequestId> submit(GenerateRequest request, EventSink sink) override {
    if (!request.simulate_acceptance) request.simulate_acceptance = defaults_.simulate_acceptance;
    return engine_->submit(std::move(request), std::move(sink));
  }
  bool compiles(const GrammarSpec& grammar) const override { return engine_->compiles(grammar); }
  Result<std::vector<std::string>> check_grammar(const GenerateRequest& request) const override {
    return engine_->check_grammar(request);
  }
  void cancel(RequestId id) override { engine_->cancel(id); }
  Status set_verify(const VerifyPolicy& policy) override { return engine_->set_verify(policy); }
  void set_target_step_ms(int milliseconds) override { engine_->set_target_step_ms(milliseconds); }
  void drop_prefix_cache() override { engine_->drop_prefix_cache(); }
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override { return engine_->stats(); }
  Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                             const EncodeLimits& limits) const override {
    return engine_->encode_within(text, add_special_tokens, limits);
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    return engine_->decode(ids, skip_special_tokens);
  }
  Result<std::string> render_chat(const ChatMessages& given) const override {
    ChatMessages chat = given;
    chat.template_kwargs_json = join_objects(defaults_.template_kwargs, given.template_kwargs_json);
    return defaults_.chat_template ? defaults_.chat_template->render(chat) : engine_->render_chat(chat);
  }
  Result<PromptPicture> read_picture(std::string_view file, bool pixels, std::string_view cache_namespace,
                                     const std::atomic<bool>* cancelled) const override {
    return engine_->read_picture(file, pixels, cache_namespace, cancelled);
  }

 private:
  const std::unique_ptr<Engine> engine_;
  const TextDefaults defaults_;
  EngineInfo info_;
};

Error of_option(const char* option, const Error& error) {
  return {error.code, std::string(option) + ": " + error.message};
}

}  // namespace

Result<TextDefaults> read_text_defaults(const TextFlags& flags, const std::string& model_dir) {
  TextDefaults defaults;
  if (flags.chat_template) {
    auto chat = text::load_template_file(model_dir, *flags.chat_template);
    if (!chat.ok()) return of_option("--chat-template", chat.error());
    defaults.chat_template = std::move(*chat);
  }
  defaults.template_kwargs = flags.template_kwargs;
  auto sampling = families::read_default_sampling(model_dir, {flags.generation_config, flags.sampling_overrides});
  if (!sampling.ok()) return of_option("--generation-config", sampling.error());
  if (flags.generation_config != "auto" || !flags.sampling_overrides.empty()) defaults.sampling = std::move(*sampling);
  return defaults;
}

AnswerDefaults chat_defaults(const TextFlags& flags, const std::string& model_dir) {
  constexpr float kTemperature = 0.7f, kTopP = 0.95f;
  const families::SamplingSource source{flags.generation_config, flags.sampling_overrides};
  const auto usual = families::read_default_sampling(model_dir, source);
  AnswerDefaults chat{usual.ok() ? *usual : SamplingParams{}, false, std::nullopt};
  if (!usual.ok() || families::says_sampling(model_dir, source)) return chat;
  chat.sampling->temperature = kTemperature;
  chat.sampling->top_p = kTopP;
  chat.milder = true;
  return chat;
}

std::unique_ptr<Engine> with_text_defaults(std::unique_ptr<Engine> engine, TextDefaults defaults) {
  if (!defaults.any()) return engine;
  return std::make_unique<EngineWithDefaults>(std::move(engine), std::move(defaults));
}

std::string join_objects(std::string_view defaults, std::string_view given) {
  const auto members = [](std::string_view object) {
    object = trim(object);
    return object.size() < 2 ? object : trim(object.substr(1, object.size() - 2));
  };
  if (members(defaults).empty()) return std::string(given);
  if (members(given).empty()) return std::string(defaults);
  return "{" + std::string(members(defaults)) + "," + std::string(members(given)) + "}";
}

}  // namespace volley::apps
