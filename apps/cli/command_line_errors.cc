#include "apps/cli/command_line_errors.h"

#include <algorithm>

#include "apps/cli/option_aliases.h"
#include "apps/cli/option_sources.h"

namespace volley::apps {
namespace {

// Explains an option that this command does not have.
Error no_such_option(const CLI::App& root, const CLI::App& app, const std::string& name, const std::string& option) {
  for (const CLI::App* other : root.get_subcommands({})) {
    if (other == &app || std::ranges::count(option_names(*other), option) == 0) continue;
    return usage_error(option + " is an option of volley " + other->get_name() + ", not of " + name, name);
  }
  if (const std::string_view instead = instead_of(option); !instead.empty()) {
    return usage_error(option + " is no option of " + name + ": " + std::string(instead), name);
  }
  const std::string nearest = nearest_name(option, option_names(app));
  return usage_error(option + " is no option of " + name + (nearest.empty() ? "" : " (did you mean " + nearest + "?)"),
                     name);
}

std::string option_of_word(const std::string& word) {
  return word.substr(0, word.find('='));
}

// The first unknown option among the words, or else the first unknown word.
Error unexpected(const CLI::App& root, const CLI::App& app, const std::string& name,
                 const std::vector<std::string>& words) {
  const auto is_option = [](const std::string& word) { return word.size() > 1 && word.front() == '-'; };
  const auto found = std::ranges::find_if(words, is_option);
  if (found != words.end()) return no_such_option(root, app, name, option_of_word(*found));
  const bool takes_model = app.get_option_no_throw("--model") != nullptr;
  return usage_error("\"" + words.front() + "\" is one word too many: " + name + " takes " +
                         (takes_model ? "one model, as its first word or with --model, and options" : "options alone"),
                     name);
}

// Turns CLI11's messages into sentences: they lack the end, and some have several lines. An option given twice reads
// "--prompt: At Most 1 required but received 2".
std::string sentence_of(std::string message) {
  std::ranges::replace(message, '\n', ' ');
  while (!message.empty() && (message.back() == ' ' || message.back() == '.')) message.pop_back();
  constexpr std::string_view kTooMany = ": At Most 1 required but received ";
  const size_t at = message.find(kTooMany);
  if (at == std::string::npos) return message;
  return message.substr(0, at) + " takes one value and got " + message.substr(at + kTooMany.size()) + ": give it once";
}

// Commands of other programs, with their counterparts here.
constexpr std::pair<std::string_view, std::string_view> kOtherCommands[] = {
    {"complete", "generate --prompt TEXT"},
    {"run-batch", "batch"},
    {"version", "--version"},
};

}  // namespace

Error usage_error(const std::string& sentence, const std::string& name) {
  return invalid_argument(sentence + "; see " + name + " --help");
}

Error parse_error(const CLI::App& root, std::string message) {
  std::string name;
  const CLI::App& app = innermost(root, &name);
  if (const auto words = app.remaining(); !words.empty()) return unexpected(root, app, name, words);
  if (const auto words = root.remaining(); !words.empty()) return unexpected(root, root, "volley", words);
  return usage_error(sentence_of(std::move(message)), name);
}

Status check_command(const CLI::App& root, const std::vector<std::string>& words) {
  std::vector<std::string> commands;
  std::string list;
  for (const CLI::App* app : root.get_subcommands({})) {
    commands.push_back(app->get_name());
    list += (list.empty() ? "" : ", ") + app->get_name();
  }
  const std::string& word = words.front();
  if (word.starts_with("-") || std::ranges::count(commands, word) > 0) return {};
  const auto other = std::ranges::find(kOtherCommands, word, [](const auto& entry) { return entry.first; });
  const std::string hint =
      other != std::end(kOtherCommands) ? std::string(other->second) : nearest_name(word, commands);
  return usage_error("\"" + word + "\" is no command of volley" +
                         (hint.empty() ? ": there are " + list : " (did you mean " + hint + "?)"),
                     "volley");
}

std::optional<Error> swallowed_by_help(const CLI::App& root, const std::vector<std::string>& words) {
  const auto swallowed = std::ranges::find_if(words, [](const std::string& word) {
    return word.starts_with("-h") && !instead_of(option_of_word(word)).empty();
  });
  if (swallowed == words.end()) return std::nullopt;
  std::string name;
  const CLI::App& app = innermost(root, &name);
  return no_such_option(root, app, name, option_of_word(*swallowed));
}

}  // namespace volley::apps
