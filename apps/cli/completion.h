// Writes scripts that complete the command line in a shell, from the tables that parse it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace volley::apps {

enum class Shell { kBash, kZsh, kFish };

// A script for `shell` that completes subcommands, options, words, files and folders. `root`: with all subcommands.
std::string completion_script(const CLI::App& root, Shell shell);

}  // namespace volley::apps
