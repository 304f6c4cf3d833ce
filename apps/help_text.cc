#include "apps/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace volley::apps {
namespace {

constexpr size_t kNameColumns = 32;  // of options

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
      if (cut >= line_end) break;  // a word that is longer than a line
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
