// tokenizer.json, tokenizer_config.json beside one, and the chat templates of that and of chat_template.jinja.
#include <textkit.h>

#include "fuzz.h"

namespace {

textkit_view view(std::string_view text) {
  return {text.data(), text.size()};
}

void encode(std::string_view file, textkit_view config = {}) {
  textkit_tokenizer* tokenizer = nullptr;
  textkit_bytes error{};
  if (textkit_tokenizer_new(view(file), config, &tokenizer, &error) != TEXTKIT_OK) return textkit_bytes_free(error);
  const textkit_encode_options options{true, 1000, 0, false, {nullptr, nullptr}};
  textkit_ids ids{};
  textkit_bytes text{};
  if (textkit_tokenizer_encode(tokenizer, view("Hello, w\xC3\xB6rld  12"), &options, &ids, &error) != TEXTKIT_OK) {
    textkit_bytes_free(error);
  } else if (textkit_tokenizer_decode(tokenizer, ids.data, ids.size, false, &text, &error) != TEXTKIT_OK) {
    textkit_bytes_free(error);
  }
  textkit_ids_free(ids);
  textkit_bytes_free(text);
  textkit_tokenizer_free(tokenizer);
}

constexpr std::string_view kTokenizer = R"({"version": "1.0", "added_tokens": [], "normalizer": null,
  "pre_tokenizer": null, "post_processor": null, "decoder": null, "truncation": null, "padding": null,
  "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "H": 2}, "merges": []}})";

void render(const textkit_template_files& files) {
  textkit_template* chat = nullptr;
  textkit_bytes error{}, text{};
  if (textkit_template_new(&files, &chat, &error) != TEXTKIT_OK) return textkit_bytes_free(error);
  textkit_template_input input{};
  input.messages = view(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}])");
  input.add_generation_prompt = true;
  if (textkit_template_render(chat, &input, &text, &error) != TEXTKIT_OK) textkit_bytes_free(error);
  textkit_bytes_free(text);
  textkit_template_free(chat);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, text] = volley::fuzz::choose(data, size, 4);
  if (kind == 0) encode(text);
  if (kind == 1) render({view(text), {}, {}, {}});
  if (kind == 2) render({{}, {}, view(text), {}});
  if (kind == 3) encode(kTokenizer, view(text));
  return 0;
}
