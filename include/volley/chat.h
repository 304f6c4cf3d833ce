// Chats with models whose answers are messages between control tokens, as gpt-oss writes them (the Harmony format): the
// prompt's tokens, and an answer's content, thoughts and calls. Chats with other models only need prompt_of(): their
// answer is one text.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley {

// The part of a message that a piece of an answer adds.
struct ChatDelta {
  struct ToolCall {
    int index = 0;
    std::string id, name;  // set in a call's first piece; empty in later ones
    // A piece of the arguments' JSON text. All pieces of a call form an object, unless a limit or a stop cut them off.
    std::string arguments;
  };
  std::string content, reasoning;
  std::vector<ToolCall> tool_calls;  // at most one a call
};

// Reads one answer from its beginning on. The sum of the deltas does not depend on how the text is split into pieces.
// Threads: one at a time.
class ChatReader {
 public:
  virtual ~ChatReader() = default;
  // The text and marks of the request's next events, `at` counted in `text`. finish: how the answer ends here; null:
  // more follows.
  virtual ChatDelta read(std::string_view text, std::span<const Event::Mark> marks, const Finish* finish) = 0;
};

struct ChatPrompt {
  std::string text;  // for people: `tokens` distinguish control tokens from users' text that is spelt like them
  std::vector<TokenId> tokens;               // GenerateRequest::prompt
  std::vector<PromptPicture> pictures = {};  // GenerateRequest::pictures
};

// Threads: any.
class ChatFormat {
 public:
  // Chooses by the engine's chat template. Null: the model's answers are one text. The engine is borrowed.
  // kFailedPrecondition names a control token that the vocabulary lacks.
  static Result<std::unique_ptr<ChatFormat>> find(const Engine& engine);
  // The prompt of a chat whose answer is one text. Pictures are parts of messages, as in chat completions: {"type":
  // "image_url", "image_url": {"url": "data:image/png;base64,…"}}. Errors as render(), and Engine::read_picture().
  static Result<ChatPrompt> prompt_of(const Engine& engine, const ChatMessages& chat);
  virtual ~ChatFormat() = default;

  // Errors as Engine::render_chat() and encode().
  virtual Result<ChatPrompt> render(const ChatMessages& chat) const = 0;
  // The tokens that end an answer, and are not part of its text.
  virtual std::vector<TokenId> end_tokens() const = 0;
  // Completes a request whose prompt is set: stop strings count in content, a call ends the answer, and a grammar
  // (except kLark and kEbnf) applies to the content after the thoughts. The returned reader reads its answer. tools:
  // the chat has tools, so the answer may have calls; their ids are call_id_prefix and the call's number.
  virtual std::unique_ptr<ChatReader> prepare(GenerateRequest& request, bool tools,
                                              const std::string& call_id_prefix) const = 0;
};

}  // namespace volley
