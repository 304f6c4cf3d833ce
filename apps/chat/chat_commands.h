// The commands of a chat: inputs that begin with "/". Threads: one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/line_editor.h"

namespace volley::apps {

struct ChatCommandName {
  std::string_view name, words, help;  // "/save", "FILE", help text
  bool takes_words() const { return !words.empty(); }
};

const std::vector<ChatCommandName>& chat_commands();
// Null: no such command, or a hidden one.
const ChatCommandName* find_chat_command(std::string_view name);
std::vector<std::string> chat_command_names();
std::string chat_help();

// Completes commands for Tab, and after a command its words: names of settings, files.
LineCompletion complete_chat_line(std::string_view before_cursor);

}  // namespace volley::apps
