// The messages of a chat, what may be set about its answers, and how both are kept in a file. Threads: one.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/request_settings.h"

namespace volley::apps {

struct ChatMessage {
  std::string role, content;  // "user" or "assistant"
  std::string reasoning;      // what the model thought before it answered: kept, and not sent again
};

struct ChatSettings {
  RequestSettings sampling;
  std::optional<bool> thinking;  // the chat template's enable_thinking

  // `value`: as typed; "default" takes a setting back. kInvalidArgument names what there is, or what the value must be.
  Status set(std::string_view name, std::string_view value);
  // What answers have, a line each: "temperature  0.7", or "temperature  1 (default)".
  std::string describe(const AnswerDefaults& defaults) const;
  static std::vector<std::string> names();
};

struct Conversation {
  std::string system;  // empty: none
  std::vector<ChatMessage> messages;

  std::string messages_json() const;  // as chat completions take them
  // The last message of the user once more, without what came after it; false if there is none.
  bool take_back_answer(std::string* user_text);
};

// {"messages": […], "settings": {…}}, indented.
std::string conversation_file(const Conversation& conversation, const ChatSettings& settings);
// Reads what conversation_file wrote, or a list of messages alone, whose settings are then `settings` as they were.
// kInvalidArgument says what is wrong; `settings` is then as it was.
Result<Conversation> read_conversation(std::string_view text, ChatSettings* settings);

}  // namespace volley::apps
