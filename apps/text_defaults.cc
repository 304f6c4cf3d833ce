#include "apps/text_defaults.h"

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
    return engine_->submit(std::move(request), std::move(sink));
  }
  bool compiles(const GrammarSpec& grammar) const override { return engine_->compiles(grammar); }
  void cancel(RequestId id) noexcept override { engine_->cancel(id); }
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
    if (!defaults_.chat_template) return engine_->render_chat(chat);
    return defaults_.chat_template->render({chat.messages_json, chat.tools_json, chat.template_kwargs_json,
                                            chat.add_generation_prompt, chat.continue_final_message, chat.cancelled});
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
