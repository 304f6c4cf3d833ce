#include "serve/api/answer_size.h"

#include <algorithm>

namespace volley::serve {
namespace {

constexpr size_t kFrameBytes = 250;         // per chunk
constexpr size_t kLogprobBytes = 80;        // {"token":" the","logprob":-0.12345678955316544,"bytes":[32,116,104,101]}
constexpr size_t kPromptLogprobBytes = 80;  // "1234":{"logprob":-12.345678329467773,"rank":12,"decoded_token":" the"}
constexpr size_t kEchoLogprobBytes = 32;    // " the":-12.345678329467773
constexpr size_t kTokenIdBytes = 7;

size_t positions_bytes(const std::vector<PositionLogprobs>& positions, size_t entry) {
  size_t bytes = 0;
  for (const PositionLogprobs& position : positions) bytes += entry * (1 + position.top.size());
  return bytes;
}

// Entries for k alternatives and the token itself; 0 for k = -1.
size_t entries(int32_t k) {
  return static_cast<size_t>(std::max(k + 1, 0));
}

}  // namespace

size_t event_json_bytes(const Event& event) {
  return kFrameBytes + event.text.size() + positions_bytes(event.logprobs, kLogprobBytes);
}

size_t prompt_logprobs_json_bytes(const Event& event) {
  return positions_bytes(event.prompt_logprobs, kPromptLogprobBytes);
}

size_t shown_prompt_bytes(const ApiRequest& request, size_t prompt_tokens, size_t echo_bytes) {
  const bool chat = request.kind == ApiKind::kChat;
  const size_t choices = chat && !request.stream ? 1 : static_cast<size_t>(request.n);
  size_t bytes = prompt_tokens * entries(request.shape.prompt_logprobs) * kPromptLogprobBytes;
  if (request.echo) {
    bytes += echo_bytes;
    // Text, value and offset of each token stand in separate lists.
    const size_t echoed = entries(request.generate.sampling.logprobs);
    if (echoed > 0) bytes += prompt_tokens * (echoed + 1) * kEchoLogprobBytes;
  }
  if (request.shape.token_ids) bytes += prompt_tokens * kTokenIdBytes;
  return bytes * choices;
}

size_t choice_bytes(const GenerateRequest& request) {
  size_t bytes = sizeof request + request.cache_namespace.size();
  bytes += request.prompt.size() * sizeof(TokenId) + request.stop_token_ids.size() * sizeof(TokenId);
  bytes += request.allowed_tokens.size() * sizeof(TokenId);
  for (const auto& word : request.bad_words) bytes += sizeof word + word.size() * sizeof(TokenId);
  bytes += request.sampling.logit_bias.size() * sizeof(request.sampling.logit_bias.front());
  // The search for a stop string needs a table with a word for each of its bytes.
  for (const std::string& stop : request.stop) bytes += stop.size() * (1 + sizeof(size_t));
  if (request.grammar) {
    bytes += request.grammar->text.size() + request.grammar->lead.size();
    for (const std::string& choice : request.grammar->choices) bytes += sizeof choice + choice.size();
  }
  return bytes;
}

}  // namespace volley::serve
