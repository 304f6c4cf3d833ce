// The messages of a chat, the settings of its answers, and the file that keeps both. Threads: one.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/request_settings.h"

namespace volley::apps {

struct ChatMessage {
  std::string role, content;               // "user" or "assistant"
  std::string reasoning;                   // the model's thoughts before the answer, which are kept and not sent again
  std::vector<std::string> pictures = {};  // a user's, before the content: "data:" URLs
};

struct ChatSettings {
  RequestSettings sampling;
  std::optional<bool> thinking;  // the chat template's enable_thinking

  // `value`: as typed; "default" resets a setting. kInvalidArgument lists the names, or says what the value must be.
  Status set(std::string_view name, std::string_view value);
  // The settings in effect, a line each: "temperature  0.7", or "temperature  1 (default)".
  std::string describe(const AnswerDefaults& defaults) const;
  static std::vector<std::string> names();
};

struct Conversation {
  std::string system;  // empty: none
  std::vector<ChatMessage> messages;

  std::string messages_json() const;  // in chat completions' form
  // Returns the user's last message, and removes it with all that follows; false if there is none.
  bool take_back_answer(std::string* user_text);
};

// A picture file as a "data:" URL. kInvalidArgument: a file of another kind, or none that can be read.
Result<std::string> picture_url(const std::string& path);

// {"messages": […], "settings": {…}}, indented.
std::string conversation_file(const Conversation& conversation, const ChatSettings& settings);
// Reads conversation_file()'s output, or a list of messages alone, which leaves `settings` unchanged. kInvalidArgument
// says what is wrong, and also leaves `settings` unchanged.
Result<Conversation> read_conversation(std::string_view text, ChatSettings* settings);

}  // namespace volley::apps
