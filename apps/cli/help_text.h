// Formats help for a terminal: descriptions wrapped to its width.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace volley::apps {

// Columns of the terminal on stdout, between 60 and 120; 100 without a terminal.
int help_width();

// Wraps `text` to `width` columns where words allow it, and keeps its own line ends.
std::string wrapped(const std::string& text, size_t width);

// Heading of options that only --help-all lists.
inline constexpr const char* kInternals = "Engine internals";

// Puts alternatives of which one is required first. An option that takes several values at once is marked " ...".
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(int width);
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  std::string nameless(const CLI::App& app) const;  // words without an option's name
  std::string groups(const CLI::App& app, CLI::AppFormatMode mode) const;

  const size_t width_;
};

}  // namespace volley::apps
