#include <textkit.h>
#include <volley/engine.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "text/model_file.h"
#include "text/template_file.h"
#include "text/text.h"
#include "text/textkit_handle.h"

namespace volley::text {
namespace {

class TextkitTemplate final : public ChatTemplate {
 public:
  explicit TextkitTemplate(textkit_template* handle) : handle_(handle) {}
  ~TextkitTemplate() override { textkit_template_free(handle_); }
  TextkitTemplate(const TextkitTemplate&) = delete;
  TextkitTemplate& operator=(const TextkitTemplate&) = delete;

  Result<std::string> render(const ChatMessages& input) const override {
    textkit_template_input in{};
    in.messages = view(input.messages_json);
    in.tools = view(input.tools_json);
    in.kwargs = view(input.template_kwargs_json);
    in.add_generation_prompt = input.add_generation_prompt;
    in.continue_final_message = input.continue_final_message;
    in.now = std::time(nullptr);
    in.cancel = cancel_of(input.cancelled);
    OwnedBytes text, error;
    const textkit_status status = textkit_template_render(handle_, &in, text.out(), error.out());
    if (status != TEXTKIT_OK) return textkit_error(status, error);
    return text.str();
  }

 private:
  textkit_template* handle_;
};

// The files of templates in a model's folder.
struct TemplateFiles {
  std::optional<std::string> jinja = {};
  std::optional<std::string> tool_use = {};
};

Result<std::shared_ptr<const ChatTemplate>> compile(const std::string& dir, const TemplateFiles& templates,
                                                    const std::string& prefix) {
  VOLLEY_ASSIGN(const auto config, read_model_file(dir + "/tokenizer_config.json"));
  VOLLEY_ASSIGN(const auto special_tokens, read_model_file(dir + "/special_tokens_map.json"));
  const textkit_template_files files{optional_view(config), optional_view(special_tokens),
                                     optional_view(templates.jinja), optional_view(templates.tool_use)};
  textkit_template* handle = nullptr;
  OwnedBytes error;
  const textkit_status status = textkit_template_new(&files, &handle, error.out());
  if (status != TEXTKIT_OK) return textkit_error(status, error, prefix);
  return std::shared_ptr<const ChatTemplate>(std::make_shared<TextkitTemplate>(handle));
}

// textkit names a template from a file of its own by the file's path in the model's folder.
std::string without_usual_name(std::string message) {
  constexpr std::string_view kUsual = " of chat_template.jinja";
  if (const size_t at = message.find(kUsual); at != std::string::npos) message.erase(at, kUsual.size());
  return message;
}

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::string& dir) {
  TemplateFiles templates;
  VOLLEY_ASSIGN(templates.jinja, read_own_file(dir, "chat_template.jinja"));
  VOLLEY_ASSIGN(auto other_default, read_own_file(dir, "additional_chat_templates/default.jinja"));
  if (other_default) templates.jinja = std::move(other_default);
  VOLLEY_ASSIGN(templates.tool_use, read_own_file(dir, "additional_chat_templates/tool_use.jinja"));
  return compile(dir, templates, dir + ": ");
}

Result<bool> ChatTemplate::is_in(const std::string& dir) {
  for (const char* name : {"chat_template.jinja", "additional_chat_templates/default.jinja"}) {
    VOLLEY_ASSIGN(const auto jinja, read_own_file(dir, name));
    if (jinja) return true;
  }
  VOLLEY_ASSIGN(const auto config, read_model_file(dir + "/tokenizer_config.json"));
  if (!config) return false;
  const auto json = nlohmann::json::parse(*config, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("chat_template") && !json["chat_template"].is_null();
}

Result<std::shared_ptr<const ChatTemplate>> load_template_file(const std::string& dir, const std::string& file) {
  auto jinja = read_model_file(file);
  if (!jinja.ok()) return invalid_argument(jinja.error().message);
  if (!*jinja) return invalid_argument("There is no file " + file + ": name a Jinja template.");
  auto chat = compile(dir, {.jinja = std::move(*jinja)}, file + ": ");
  if (!chat.ok()) return invalid_argument(without_usual_name(chat.error().message));
  return chat;
}

}  // namespace volley::text
