#include "apps/chat/chat_commands.h"

#include <algorithm>
#include <filesystem>

#include "apps/chat/conversation.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> beginning_with(std::string_view typed, std::vector<std::string> words) {
  std::erase_if(words, [typed](const std::string& word) { return !word.starts_with(typed); });
  std::ranges::sort(words);
  return words;
}

// Lists files of the folder in `typed`; hidden ones only if its last part begins with a dot.
LineCompletion files(std::string_view typed, size_t begin) {
  const size_t slash = typed.rfind('/');
  const std::string folder(typed.substr(0, slash == std::string_view::npos ? 0 : slash + 1));
  const std::string_view part = typed.substr(folder.size());
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(part) || (name.starts_with('.') && part.empty())) continue;
    std::error_code ignored;
    found.push_back(folder + name + (entry->is_directory(ignored) ? "/" : ""));
  }
  std::ranges::sort(found);
  return {begin, std::move(found)};
}

LineCompletion settings(std::string_view typed, size_t begin) {
  const size_t end = typed.find(' ');
  if (end == std::string_view::npos) return {begin, beginning_with(typed, ChatSettings::names())};
  const bool thinking = typed.substr(0, end) == "thinking";
  const std::vector<std::string> values =
      thinking ? std::vector<std::string>{"on", "off", "default"} : std::vector<std::string>{"default"};
  return {begin + end + 1, beginning_with(typed.substr(end + 1), values)};
}

}  // namespace

const std::vector<ChatCommandName>& chat_commands() {
  static const std::vector<ChatCommandName> commands = {
      {"/help", "", "this list"},
      {"/clear", "", "begin anew; the system message stays"},
      {"/system", "[TEXT|none]", "show the system message, set it, or take it away"},
      {"/set", "[NAME VALUE]", "all settings of answers; one of them, such as temperature 0.7; default takes one back"},
      {"/stats", "[on|off]", "figures of the last answer, or of each from now on"},
      {"/regenerate", "", "answer the last message again"},
      {"/image", "FILE", "show the model a picture with the next message"},
      {"/save", "FILE", "keep messages and settings"},
      {"/load", "FILE", "go on with kept ones"},
      {"/quit", "", "leave, as Ctrl-D and /exit do"},
      {"/exit", "", ""},
  };
  return commands;
}

const ChatCommandName* find_chat_command(std::string_view name) {
  const auto found = std::ranges::find(chat_commands(), name, &ChatCommandName::name);
  return found == chat_commands().end() ? nullptr : &*found;
}

std::vector<std::string> chat_command_names() {
  std::vector<std::string> names;
  for (const ChatCommandName& command : chat_commands()) names.emplace_back(command.name);
  return names;
}

std::string chat_help() {
  constexpr size_t kColumns = 22;
  std::string text;
  for (const ChatCommandName& command : chat_commands()) {
    if (command.help.empty()) continue;
    std::string usage(command.name);
    if (command.takes_words()) usage.append(" ").append(command.words);
    usage.resize(std::max(kColumns, usage.size() + 1), ' ');
    text += usage.append(command.help) + "\n";
  }
  return text +
         "Ctrl-C stops an answer. What is typed while one comes is kept for the next message. Tab completes commands.\n"
         "Alt-Enter begins a new line; so does every line between \"\"\" and \"\"\".\n"
         "A text that begins with / is a message when a space stands before it.\n";
}

LineCompletion complete_chat_line(std::string_view line) {
  if (!line.starts_with('/')) return {};
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return {0, beginning_with(line, chat_command_names())};
  const std::string_view name = line.substr(0, space), typed = line.substr(space + 1);
  if (name == "/save" || name == "/load" || name == "/image") return files(typed, space + 1);
  if (name == "/set") return settings(typed, space + 1);
  if (name == "/stats") return {space + 1, beginning_with(typed, {"on", "off"})};
  if (name == "/system") return {space + 1, beginning_with(typed, {"none"})};
  return {};
}

}  // namespace volley::apps
