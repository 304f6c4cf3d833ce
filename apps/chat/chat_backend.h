// Who answers in a chat: the engine of this process, or an endpoint. Threads: stop() from any; everything else from
// one.
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

inline constexpr std::chrono::milliseconds kChatWake{200};  // between two calls of on_wait

struct ChatStats {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::optional<double> tokens_per_step;  // where it is known
  double ttft_s = 0, total_s = 0;
};

struct ChatAnswer {
  std::string content, reasoning;
  FinishReason finish = FinishReason::kStop;
  std::optional<Error> error;  // with kError: it ended before its end
  ChatStats stats;
};

// While nothing of an answer has come.
struct ChatWait {
  double seconds = 0;
  std::optional<int64_t> prompt_tokens, computed_tokens;  // where they are known
};

class ChatBackend {
 public:
  using OnSpan = std::function<void(const ChatSpan&)>;
  using OnWait = std::function<void(const ChatWait&)>;

  virtual ~ChatBackend() = default;
  // "Qwen3-8B", and whether it says which tokens were drafted.
  virtual std::string name() const = 0;
  virtual bool knows_origins() const = 0;
  // What answers have where ChatSettings say nothing.
  virtual const AnswerDefaults& defaults() const = 0;
  // Runs one answer to its end. An error: there is no answer at all. `on_wait` is called a few times a second until the
  // end, whatever else comes.
  virtual Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings,
                                    const OnSpan& on_span, const OnWait& on_wait) = 0;
  // Ends the answer that runs, if one does, with what it has (kCancelled).
  virtual void stop() = 0;
};

// `engine` must outlive it. `defaults`: of sampling; the chat template's are added.
Result<std::unique_ptr<ChatBackend>> make_engine_backend(Engine& engine, const std::string& name,
                                                         AnswerDefaults defaults);
// Asks the endpoint for its models first. `model`: one of them; empty: the first. `timeout`: of one answer.
Result<std::unique_ptr<ChatBackend>> make_endpoint_backend(const std::string& url,
                                                           const std::optional<std::string>& model,
                                                           std::vector<std::string> headers,
                                                           const std::function<bool()>& stopped);

// The spans of a text of which `pieces` are the tokens, the first `accepted` of them drafted. What does not agree with
// the tokens, such as half a character, is of unknown origin.
std::vector<TokenColours::Span> spans_of_pieces(std::string_view text, const std::vector<std::string>& pieces,
                                                size_t accepted);

}  // namespace volley::apps
