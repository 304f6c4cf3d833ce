// Bodies of requests: JSON, schemas and fields of all four APIs.
#include "fuzz.h"
#include "serve/api/openai_request.h"
#include "serve/messages/messages_request.h"
#include "serve/responses/responses_request.h"

using namespace volley;

namespace {

EngineInfo make_info(bool sees) {
  EngineInfo info;
  info.vocab_size = 2048;
  info.max_model_len = 2048;
  info.eos_token_ids = {2};
  if (sees) info.pictures.emplace();
  return info;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, body] = fuzz::choose(data, size, 5);
  static const std::vector<std::string> models = {"pocket"};
  static serve::ResponseStore store(8, 1 << 16);
  static const EngineInfo blind = make_info(false), seeing = make_info(true);
  const serve::RequestRules rules{size % 2 == 0 ? blind : seeing, models};
  if (kind == 0) {
    (void)serve::parse_chat_request(body, rules);
  } else if (kind == 1) {
    (void)serve::parse_completion_request(body, rules);
  } else if (kind == 2) {
    (void)serve::parse_responses_request(body, {rules, store, "", "1", 1 << 16});
  } else {
    (void)serve::parse_messages_request(body, rules, kind == 4);
  }
  return 0;
}
