// Parses command lines for tests.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

inline Result<Command> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "volley");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

// The words must not contain spaces.
inline Result<Command> parse_words(const std::string& words) {
  std::istringstream text(words);
  std::vector<std::string> list;
  for (std::string word; text >> word;) list.push_back(word);
  std::vector<const char*> arguments;
  for (const std::string& word : list) arguments.push_back(word.c_str());
  return parse(std::move(arguments));
}

// The command that was parsed. Throws where it was refused.
template <typename C>
C command_of(Result<Command> parsed) {
  if (!parsed.ok()) throw std::runtime_error(parsed.error().message);
  return std::get<C>(std::move(*parsed));
}

// Why it was refused.
inline std::string refusal(const Result<Command>& parsed) {
  return parsed.ok() ? "accepted" : parsed.error().message;
}

}  // namespace volley::apps
