// Help as a terminal shows it: descriptions wrapped to its width.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace volley::apps {

// Columns of the terminal on stdout, between 60 and 120; 100 where it is none.
int help_width();

// `text` in lines of at most `width` columns where words allow it; line ends of its own stay.
std::string wrapped(const std::string& text, size_t width);

// The heading of options that --help leaves out and --help-all lists.
inline constexpr const char* kInternals = "Engine internals";

// Options of which one must be given come first. Behind the name of an option that may take several values at once
// stands " ...".
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(int width);
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  std::string nameless(const CLI::App& app) const;  // words that need no name
  std::string groups(const CLI::App& app, CLI::AppFormatMode mode) const;

  const size_t width_;
};

}  // namespace volley::apps
