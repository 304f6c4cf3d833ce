#include "apps/cli/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace volley::apps {
namespace {

constexpr size_t kNameColumns = 32;  // columns of option names

std::vector<const CLI::Option*> options_of_group(const CLI::App& app, const std::string& group) {
  return app.get_options(
      [&group](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
}

}  // namespace

int help_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return std::clamp<int>(size.ws_col, 60, 120);
}

std::string wrapped(const std::string& text, size_t width) {
  std::string out;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t line_end = std::min(text.find('\n', begin), text.size());
    while (line_end - begin > width) {
      size_t cut = text.rfind(' ', begin + width);
      if (cut == std::string::npos || cut <= begin) cut = text.find(' ', begin);
      if (cut >= line_end) break;  // a word longer than the line
      out.append(text, begin, cut - begin).append("\n");
      begin = cut + 1;
    }
    out.append(text, begin, line_end - begin);
    if (line_end == text.size()) break;
    out += '\n';
    begin = line_end + 1;
  }
  return out;
}

HelpFormatter::HelpFormatter(int width) : width_(static_cast<size_t>(width)) {
  column_width(kNameColumns);
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = make_description(app) + make_usage(app, name) + nameless(*app);
  std::string commands;
  for (const CLI::App* sub : app->get_subcommands({})) {
    if (sub->get_name().empty()) {
      text += make_group(sub->get_group() + " (" + sub->get_description() + ")", false, sub->get_options({}));
    } else {
      commands += make_subcommand(sub);
    }
  }
  text += groups(*app, mode);
  if (!commands.empty()) text += "\nSubcommands:\n" + commands;
  const size_t internals = options_of_group(*app, kInternals).size();
  if (internals > 0 && mode != CLI::AppFormatMode::All) {
    text +=
        "\n" +
        wrapped(name + " --help-all lists " + std::to_string(internals) + " more, of the engine's internals.", width_) +
        "\n";
  }
  return text + "\n" + make_footer(app);
}

// Options with a name are described under it.
std::string HelpFormatter::nameless(const CLI::App& app) const {
  std::ostringstream text;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string description = option->nonpositional() ? "as " + option->get_name() : make_option_desc(option);
    CLI::detail::format_help(text, make_option_usage(option), description, kNameColumns);
  }
  return text.str().empty() ? "" : "\nWithout a name:\n" + text.str();
}

std::string HelpFormatter::groups(const CLI::App& app, CLI::AppFormatMode mode) const {
  std::string text;
  for (const std::string& group : app.get_groups()) {
    if (group.empty() || (group == kInternals && mode != CLI::AppFormatMode::All)) continue;
    const auto options = options_of_group(app, group);
    if (!options.empty()) text += make_group(group, false, options);
  }
  return text;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const int most = option->get_expected_max();
  const bool says_so = most == CLI::detail::expected_max_vector_size;
  return CLI::Formatter::make_option_opts(option) + (most > 1 && !says_so ? " ..." : "");
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return wrapped(CLI::Formatter::make_option_desc(option), width_ - kNameColumns);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return wrapped(CLI::Formatter::make_footer(app), width_);
}

}  // namespace volley::apps
