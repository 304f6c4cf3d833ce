// Answers a chat: the engine of this process, or an endpoint. Threads: stop() on any; all else on one.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/chat/conversation.h"
#include "apps/client/endpoint.h"
#include "apps/generate/token_colours.h"

namespace volley::apps {

struct ChatSpan {
  std::string text;
  TokenColours::Origin origin = TokenColours::Origin::kUnknown;
  bool reasoning = false;
};

inline constexpr std::chrono::milliseconds kChatWake{200};  // time between two calls of on_wait

struct ChatStats {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::optional<double> tokens_per_step;  // if known
  double ttft_s = 0, total_s = 0;
};

struct ChatAnswer {
  std::string content, reasoning;
  FinishReason finish = FinishReason::kStop;
  std::optional<Error> error;  // with kError: the answer is not complete
  ChatStats stats;
};

// State of the wait for an answer's first text.
struct ChatWait {
  double seconds = 0;
  std::optional<int64_t> prompt_tokens, computed_tokens;  // if known
};

class ChatBackend {
 public:
  using OnSpan = std::function<void(const ChatSpan&)>;
  using OnWait = std::function<void(const ChatWait&)>;

  virtual ~ChatBackend() = default;
  // "Qwen3-8B", and whether it reports which tokens were drafted.
  virtual std::string name() const = 0;
  virtual bool knows_origins() const = 0;
  // Values of answers where ChatSettings leave them open.
  virtual const AnswerDefaults& defaults() const = 0;
  // Runs one answer to its end. Error: there is no answer at all. Calls `on_wait` a few times a second until the end.
  virtual Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings,
                                    const OnSpan& on_span, const OnWait& on_wait) = 0;
  // Ends the running answer, if any, with the text so far (kCancelled).
  virtual void stop() = 0;
};

// `engine` must outlive it. `defaults`: sampling; this function adds the chat template's.
Result<std::unique_ptr<ChatBackend>> make_engine_backend(Engine& engine, const std::string& name,
                                                         AnswerDefaults defaults);
// Asks the endpoint for its models first. `model`: one of them; empty: the first. `timeout`: for one answer.
Result<std::unique_ptr<ChatBackend>> make_endpoint_backend(const std::string& url,
                                                           const std::optional<std::string>& model,
                                                           std::vector<std::string> headers,
                                                           const std::function<bool()>& stopped);

// Splits a text into spans by its tokens' `pieces`, of which the first `accepted` were drafted. Text that does not
// match the pieces, such as half a character, is of unknown origin.
std::vector<TokenColours::Span> spans_of_pieces(std::string_view text, const std::vector<std::string>& pieces,
                                                size_t accepted);

}  // namespace volley::apps
