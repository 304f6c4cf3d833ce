#include "apps/cli/option_sources.h"

#include <algorithm>
#include <array>
#include <set>

#include "apps/cli/config_file.h"
#include "apps/cli/option_aliases.h"
#include "base/text.h"

namespace volley::apps {
namespace {

constexpr std::string_view kPrefix = "VOLLEY_";

std::string dashes(std::string text) {
  std::ranges::replace(text, '_', '-');
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0 || option.get_type_size_max() == 0;
}

bool takes_several(const CLI::Option& option) {
  return option.get_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

std::optional<bool> truth_of(const std::vector<std::string>& values) {
  return values.size() == 1 ? truth(values.front()) : std::nullopt;
}

// Kubernetes gives pods of a Service named volley VOLLEY_PORT=tcp://10.0.0.1:8000 and the like.
bool is_of_kubernetes(const std::string& name, const std::string& value) {
  if (name == "VOLLEY_PORT") return value.find("://") != std::string::npos;
  if (name.starts_with("VOLLEY_SERVICE_HOST") || name.starts_with("VOLLEY_SERVICE_PORT")) return true;
  return name.starts_with("VOLLEY_PORT_") &&
         (name.find("_TCP") != std::string::npos || name.find("_UDP") != std::string::npos);
}

// The option for a key of vLLM, SGLang or ours; empty: the program always works so.
std::string ours(const std::string& key) {
  const std::vector<std::string> words = translate_aliases({"--" + key});
  return words.empty() ? "" : words.front();
}

// Collects an app's settings from the strongest source to the weakest.
class Collector {
 public:
  Collector(CLI::App& app, std::string name) : app_(app), name_(std::move(name)) {}

  Status take_variables(const Variables& variables);
  Status take_file(const std::string& path);
  // Null: unknown, or a help option.
  CLI::Option* find(const std::string& option) {
    return option.empty() || option == "--help" || option == "--help-all" || option == "--"
               ? nullptr
               : app_.get_option_no_throw(option);
  }
  std::vector<OptionSetting> take() { return std::move(settings_); }

 private:
  void next_source();
  Status set(CLI::Option& option, std::vector<std::string> values, const std::string& source, const std::string& what,
             bool from_variable);
  // For a key that is no option, but may turn one off ("no-…"). No value: it does not.
  std::optional<Status> set_without(const std::string& key, const std::vector<std::string>& values,
                                    const std::string& source, const std::string& what);
  Status set_entry(const ConfigEntry& entry, const std::string& path);
  // Whether a stronger source set it, or set an option that excludes it.
  bool is_excluded(const CLI::Option& option) const;

  CLI::App& app_;
  const std::string name_;
  std::set<const CLI::Option*> stronger_;    // set by stronger sources
  std::set<const CLI::Option*> off_before_;  // flags that a stronger source turned off
  std::set<const CLI::Option*> off_;         // the same in this source
  std::vector<OptionSetting> settings_;
};

void Collector::next_source() {
  for (const CLI::Option* option : options_of(app_)) {
    if (option->count() > 0) stronger_.insert(option);
  }
  off_before_.merge(off_);
  off_.clear();
}

bool Collector::is_excluded(const CLI::Option& option) const {
  if (stronger_.contains(&option) || off_before_.contains(&option)) return true;
  for (const CLI::App* group : app_.get_subcommands({})) {
    if (!group->get_name().empty() || group->get_require_option_max() != 1) continue;
    const auto inner = group->get_options();
    if (std::ranges::count(inner, &option) == 0) continue;
    if (std::ranges::any_of(inner, [&](const CLI::Option* other) { return stronger_.contains(other); })) return true;
  }
  return false;
}

Status Collector::set(CLI::Option& option, std::vector<std::string> values, const std::string& source,
                      const std::string& what, bool from_variable) {
  const std::string option_name = option.get_name();
  if (const auto address =
          option_name == kDistInitAddr && values.size() == 1 ? split_address(values.front()) : std::nullopt) {
    VOLLEY_RETURN_IF_ERROR(set(*find("--master-addr"), {address->first}, source, what, from_variable));
    return set(*find("--master-port"), {address->second}, source, what, from_variable);
  }
  if (is_excluded(option)) return {};
  if (option.count() > 0 || off_.contains(&option))
    return invalid_argument(source + ": " + what + " sets " + option_name + " a second time");
  if (is_flag(option)) {
    const std::optional<bool> on = truth_of(values);
    if (!on) return invalid_argument(source + ": " + what + " is either true or false");
    if (!*on) {
      off_.insert(&option);
      return {};
    }
    values.clear();
  } else if (values.size() > 1 && !takes_several(option)) {
    return invalid_argument(source + ": " + what + " takes one value, not a list");
  }
  try {
    if (values.empty()) option.add_result("true");
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    if (message.starts_with(option_name + ": ")) message.erase(0, option_name.size() + 2);
    std::ranges::replace(message, '\n', ' ');
    while (!message.empty() && (message.back() == '.' || message.back() == ' ')) message.pop_back();
    return invalid_argument(source + ": " + (from_variable ? "" : what + ": ") + message + "; see " + name_ +
                            " --help");
  }
  settings_.push_back({option_name, std::move(values), source, from_variable});
  return {};
}

// "enable-prefix-caching: false" means --no-prefix-cache, like vLLM's --no-enable-prefix-caching.
std::optional<Status> Collector::set_without(const std::string& key, const std::vector<std::string>& values,
                                             const std::string& source, const std::string& what) {
  const std::optional<bool> on = truth_of(values);
  CLI::Option* opposite = find(ours("no-" + key));
  if (opposite == nullptr || !on) return std::nullopt;
  return set(*opposite, {*on ? "false" : "true"}, source, what, false);
}

Status Collector::take_variables(const Variables& variables) {
  next_source();
  for (const auto& [name, value] : variables) {
    const std::string key = dashes(name.substr(kPrefix.size()));
    CLI::Option* option = find(ours(key));
    // An empty secret would open what it should protect.
    if (value.empty() && option != nullptr && option->get_name() == "--api-key") {
      return invalid_argument(name + " is set and holds no API key: put one in, or unset it.");
    }
    if (value.empty() || is_of_kubernetes(name, value)) continue;  // empty counts as unset
    if (option == nullptr) {
      if (const auto done = set_without(key, {value}, name, name)) VOLLEY_RETURN_IF_ERROR(*done);
      continue;
    }
    std::vector<std::string> values = {value};
    if (takes_several(*option) && !is_flag(*option)) {
      if (auto list = value.front() == '[' ? parse_list(value) : std::nullopt) {
        values = std::move(*list);
      } else if (option->get_delimiter() == '\0') {
        values = CLI::detail::split(value, ',');
        for (std::string& item : values) item = std::string(trim(item));
      }
    }
    VOLLEY_RETURN_IF_ERROR(set(*option, std::move(values), name, name, true));
  }
  return {};
}

Status Collector::set_entry(const ConfigEntry& entry, const std::string& path) {
  const std::string source = path + ":" + std::to_string(entry.line);
  const std::string option_name = ours(entry.key);
  CLI::Option* option = find(option_name);
  if (option == nullptr) {
    if (const auto done = set_without(entry.key, entry.values, source, entry.key)) return *done;
  }
  if (option_name.empty()) {
    if (truth_of(entry.values).value_or(false)) return {};
    return invalid_argument(source + ": " + entry.key + " is always on: leave the line out");
  }
  if (option == nullptr || option_name == "--config") {
    std::vector<std::string> names;
    for (const std::string& name : option_names(app_)) names.push_back(name.substr(2));
    std::erase(names, "config");
    const std::string nearest = option ? "" : nearest_name(entry.key, names);
    return invalid_argument(source + ": " + entry.key + " is no option of " + name_ + " that a file can set" +
                            (nearest.empty() ? "" : " (did you mean " + nearest + "?)") + "; see " + name_ + " --help");
  }
  if (entry.json && option->get_type_name() != "JSON") {
    return invalid_argument(source + ": " + entry.key + " takes a value or a list, not a mapping");
  }
  return set(*option, entry.json ? std::vector<std::string>{*entry.json} : entry.values, source, entry.key, false);
}

Status Collector::take_file(const std::string& path) {
  next_source();
  VOLLEY_ASSIGN(const std::vector<ConfigEntry> entries, read_config_file(path));
  for (const ConfigEntry& entry : entries) VOLLEY_RETURN_IF_ERROR(set_entry(entry, path));
  return {};
}

}  // namespace

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  std::vector<const CLI::Option*> found;
  for (const CLI::Option* option : app.get_options()) {
    const bool asks =
        option == app.get_help_ptr() || option == app.get_help_all_ptr() || option->check_name("--version");
    const bool is_shown = !option->get_group().empty();
    if (!asks && is_shown && !option->get_lnames().empty()) found.push_back(option);
  }
  for (const CLI::App* group : app.get_subcommands({})) {  // groups of options have no name
    if (!group->get_name().empty()) continue;
    for (const CLI::Option* option : options_of(*group)) found.push_back(option);
  }
  return found;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// base/environment.h, the unit file in deploy/ and the repository's tests read these.
bool is_read_elsewhere(const std::string& name) {
  constexpr std::array<std::string_view, 9> kNames = {"VOLLEY_CHROMIUM",    "VOLLEY_API_CASES",    "VOLLEY_API_KEYS",
                                                      "VOLLEY_ARGS",        "VOLLEY_DISABLE_BF16", "VOLLEY_PROGRAM",
                                                      "VOLLEY_SCREENSHOTS", "VOLLEY_STOP_CASES",   "VOLLEY_STREAMS"};
  return std::ranges::count(kNames, name) > 0 || name.starts_with("VOLLEY_TEST_");
}

std::string variable_of(const std::string& option) {
  std::string name = option.substr(2);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return std::string(kPrefix) + name;
}

Result<std::vector<OptionSetting>> settings_beside(CLI::App& app, const std::string& name, const Variables& variables) {
  Collector collector(app, name);
  VOLLEY_RETURN_IF_ERROR(collector.take_variables(variables));
  const CLI::Option* config = collector.find("--config");
  if (config != nullptr && config->count() > 0) VOLLEY_RETURN_IF_ERROR(collector.take_file(config->results().back()));
  return collector.take();
}

std::vector<std::string> unknown_variables(const CLI::App& root, const Variables& variables) {
  std::vector<std::string> known;
  for (const CLI::App* app : root.get_subcommands({})) {
    for (const std::string& option : option_names(*app)) known.push_back(variable_of(option));
  }
  std::vector<std::string> sentences;
  for (const auto& [name, value] : variables) {
    const std::string key = dashes(name.substr(kPrefix.size()));
    const auto is_known = [&known](const std::string& option) {
      return option.empty() || std::ranges::count(known, variable_of(option)) > 0;
    };
    const std::optional<bool> on = truth(value);
    const bool has_opposite = is_known(ours("no-" + key)) && on.has_value();
    if (ours(key).empty() && on.has_value() && !*on && !has_opposite) {
      sentences.push_back(name + " says no to what is always on");
      continue;
    }
    if (is_read_elsewhere(name) || is_of_kubernetes(name, value) || is_known(ours(key)) || has_opposite) continue;
    const std::string nearest = nearest_name(name, known);
    sentences.push_back("nothing reads the variable " + name +
                        (nearest.empty() ? "" : " (did you mean " + nearest + "?)"));
  }
  return sentences;
}

std::vector<std::string> words_of(const std::vector<OptionSetting>& settings) {
  std::vector<std::string> words;
  for (const OptionSetting& setting : settings) {
    if (setting.values.empty()) words.push_back(setting.option);
    for (const std::string& value : setting.values) words.push_back(setting.option + "=" + value);
  }
  return words;
}

}  // namespace volley::apps
