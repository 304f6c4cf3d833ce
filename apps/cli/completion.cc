#include "apps/cli/completion.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

#include "apps/cli/option_sources.h"

namespace volley::apps {
namespace {

// An option's value.
struct Value {
  bool none = false;  // a flag
  std::vector<std::string> words;
  bool files = false, folders = false;
};

struct OptionFacts {
  std::string name;  // "--spec"
  std::string help;  // the first clause of its help
  std::string kind;  // name of its value
  Value value;
};

struct CommandFacts {
  std::string name, help;
  std::vector<OptionFacts> options;
};

bool is_word(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_' || c == '-';
  });
}

// CLI11 shows a check's words as "TEXT:{a,b}"; our own checks show "auto|full|N" and "DIR|none".
Value value_of(const CLI::Option& option) {
  Value value;
  if (option.get_expected_max() == 0 || option.get_type_size_max() == 0) {
    value.none = true;
    return value;
  }
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    value.words = CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
  } else {
    for (const std::string& part : CLI::detail::split(type, '|')) {
      if (is_word(part)) value.words.push_back(part);
      value.files = value.files || part.starts_with("FILE");
      value.folders = value.folders || part == "DIR";
    }
  }
  std::ranges::sort(value.words);
  return value;
}

// Cuts the text at the first sign that ends a clause, and removes signs that shells interpret.
std::string clause(const std::string& text) {
  std::string short_text = text.substr(0, text.find_first_of(":;(["));
  std::erase_if(short_text, [](char c) { return c == '\'' || c == '"' || c == '\\' || c == '`' || c == '$'; });
  while (!short_text.empty() && short_text.back() == ' ') short_text.pop_back();
  return short_text;
}

std::vector<CommandFacts> facts_of(const CLI::App& root) {
  std::vector<CommandFacts> commands;
  for (const CLI::App* app : root.get_subcommands({})) {
    CommandFacts command{app->get_name(), clause(app->get_description()), {}};
    for (const CLI::Option* option : options_of(*app)) {
      for (const std::string& name : option->get_lnames()) {
        const std::string type = option->get_type_name();
        const std::string kind = clause(type.substr(0, type.find('{')));
        command.options.push_back({"--" + name, clause(option->get_description()), kind, value_of(*option)});
      }
    }
    for (const CLI::Option* option : app->get_options()) {  // values without an option's name, as completion takes
      if (!option->get_positional()) continue;
      command.options.push_back({"", clause(option->get_description()), "", value_of(*option)});
    }
    Value none;
    none.none = true;
    command.options.push_back({"--help", "what there is", "", none});
    command.options.push_back({"--help-all", "what there is, internals too", "", none});
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string command_names(const std::vector<CommandFacts>& commands) {
  std::vector<std::string> names;
  for (const CommandFacts& command : commands) names.push_back(command.name);
  return joined(names);
}

// The shell's action for a value.
std::string bash_action(const Value& value) {
  std::string action;
  if (!value.words.empty()) action += "_volley_words '" + joined(value.words) + "'; ";
  if (value.files) action += "_volley_paths -f; ";
  if (value.folders && !value.files) action += "_volley_paths -d; ";
  return action;
}

std::string bash_script(const std::vector<CommandFacts>& commands) {
  std::string script = R"(# Completion of volley for bash: source <(volley completion bash)
_volley_words() { local found; mapfile -t found < <(compgen -W "$1" -- "$word"); COMPREPLY+=("${found[@]}"); }
_volley_paths() {
  local found
  mapfile -t found < <(compgen "$1" -- "$word")
  COMPREPLY+=("${found[@]}")
  compopt -o filenames 2>/dev/null
}
_volley() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    _volley_words ')" + command_names(commands) +
                       R"( --help --version'
    return
  fi
  # bash takes the sign of --option=value for a word of its own.
  if [ "$word" = = ]; then word=; elif [ "$option" = = ]; then option=${COMP_WORDS[COMP_CWORD-2]}; fi
  case ${COMP_WORDS[1]}:$option in
)";
  for (const CommandFacts& command : commands) {
    std::map<std::string, std::string> patterns;  // by action
    for (const OptionFacts& option : command.options) {
      if (option.value.none || option.name.empty()) continue;
      std::string& pattern = patterns[bash_action(option.value)];
      pattern += (pattern.empty() ? "" : "|") + command.name + ":" + option.name;
    }
    for (const auto& [action, pattern] : patterns) script += "    " + pattern + ") " + action + "return ;;\n";
  }
  script += "  esac\n  case ${COMP_WORDS[1]} in\n";
  for (const CommandFacts& command : commands) {
    std::vector<std::string> names;
    std::string paths;
    for (const OptionFacts& option : command.options) {
      if (option.name.empty()) names.insert(names.end(), option.value.words.begin(), option.value.words.end());
      if (!option.name.empty()) names.push_back(option.name);
      // Folders are offered only after a letter: their names would hide the options.
      if (!option.name.empty() || !option.value.folders) continue;
      paths = std::string("; case $word in [!-]*) _volley_paths ") + (option.value.files ? "-f" : "-d") + " ;; esac";
    }
    script += "    " + command.name + ") _volley_words '" + joined(names) + "'" + paths + " ;;\n";
  }
  return script + "  esac\n}\ncomplete -F _volley volley\n";
}

// "[help]:kind:action", or "[help]" for a flag.
std::string zsh_rest(const OptionFacts& option) {
  std::string rest = option.name.empty() ? "" : "[" + option.help + "]";
  if (option.value.none) return rest;
  rest += ":" + (option.kind.empty() ? "value" : option.kind) + ":";
  // _arguments takes one action, so words and paths together become a list of alternatives.
  const std::string words = "(" + joined(option.value.words) + ")";
  const std::string paths = option.value.files ? "_files" : option.value.folders ? "_files -/" : "";
  if (option.value.words.empty()) return rest + (paths.empty() ? " " : paths);
  if (paths.empty()) return rest + words;
  return rest + "_alternative \"words:word:" + words + "\" \"files:file:" + paths + "\"";
}

std::string zsh_script(const std::vector<CommandFacts>& commands) {
  std::string script =
      "#compdef volley\n# Completion of volley for zsh: source <(volley completion zsh)\n_volley() {\n"
      "  if (( CURRENT == 2 )); then\n    local -a commands\n    commands=(";
  for (const CommandFacts& command : commands) script += "\n      '" + command.name + ":" + command.help + "'";
  script +=
      ")\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n  shift words\n"
      "  (( CURRENT-- ))\n  case $command in\n";
  for (const CommandFacts& command : commands) {
    script += "    " + command.name + ") _arguments";
    for (const OptionFacts& option : command.options) {
      const std::string name = option.name.empty() ? "1" : "*" + option.name + (option.value.none ? "" : "=");
      script += " \\\n      '" + name + zsh_rest(option) + "'";
    }
    script += " ;;\n";
  }
  return script +
         "  esac\n}\nif [ \"$funcstack[1]\" = _volley ]; then _volley \"$@\"; else compdef _volley volley; fi\n";
}

std::string fish_script(const std::vector<CommandFacts>& commands) {
  std::string script = "# Completion of volley for fish: volley completion fish | source\ncomplete -c volley -f\n";
  for (const CommandFacts& command : commands) {
    script += "complete -c volley -n __fish_use_subcommand -a " + command.name + " -d '" + command.help + "'\n";
  }
  for (const CommandFacts& command : commands) {
    const std::string of_command = "complete -c volley -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const OptionFacts& option : command.options) {
      const std::string words = option.value.words.empty() ? "" : " -a '" + joined(option.value.words) + "'";
      const bool paths = option.value.files || option.value.folders;
      if (option.name.empty()) {
        script += of_command + (paths ? " -F" : "") + words + "\n";
        continue;
      }
      script += of_command + " -l " + option.name.substr(2) + " -d '" + option.help + "'" +
                (option.value.none ? ""
                 : paths           ? " -r -F"
                                   : " -x") +
                words + "\n";
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& root, Shell shell) {
  const std::vector<CommandFacts> commands = facts_of(root);
  if (shell == Shell::kBash) return bash_script(commands);
  return shell == Shell::kZsh ? zsh_script(commands) : fish_script(commands);
}

}  // namespace volley::apps
