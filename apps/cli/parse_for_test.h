// Parses command lines for tests.
#pragma once

#include <sstream>
#include <string>
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

}  // namespace volley::apps
