// Protects help on narrow terminals: no line is wider, and no word is lost or cut.
#include "apps/cli/help_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "apps/cli/option_groups.h"

namespace volley::apps {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST(HelpText, WrapsAtWords) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(wrapped("a longestword b", 5), "a\nlongestword\nb");
  EXPECT_EQ(wrapped("one\ntwo three", 9), "one\ntwo three");
  EXPECT_EQ(wrapped("", 5), "");
  EXPECT_EQ(wrapped("one two\n", 5), "one\ntwo\n");
}

TEST(HelpText, FitsTheTerminal) {
  for (const int width : {60, 80, 120}) {
    CLI::App app("An application.", "app");
    app.formatter(std::make_shared<HelpFormatter>(width));
    const std::string long_text =
        "what it says in so many words that no line could hold them all, and then some more of them so that it is long";
    app.footer(long_text);
    int value = 0;
    app.add_option("--short", value, long_text);
    app.add_option("--an-option-whose-name-is-long", value, long_text);
    std::istringstream help(app.help());
    for (std::string line; std::getline(help, line);) EXPECT_LE(line.size(), static_cast<size_t>(width)) << line;
    const auto shown = words(app.help()), all = words(long_text);
    EXPECT_NE(std::search(shown.begin(), shown.end(), all.begin(), all.end()), shown.end());
  }
}

TEST(HelpText, ShowsWhichOptionsTakeSeveralValues) {
  CLI::App app("An application.", "app");
  app.formatter(std::make_shared<HelpFormatter>(80));
  std::vector<std::string> some, each, any;
  std::string one;
  values_as_written(app.add_option("--some", some, "text"));
  one_value_each(app.add_option("--each", each, "text"));
  app.add_option("--any", any, "text");
  app.add_option("--one", one, "text");
  const std::vector<std::string> shown = words(app.help());
  const auto behind = [&](const char* name) { return *(std::find(shown.begin(), shown.end(), name) + 2); };
  EXPECT_EQ(behind("--some"), "...");
  EXPECT_EQ(behind("--each"), "text");
  EXPECT_EQ(behind("--any"), "...");
  EXPECT_EQ(behind("--one"), "text");
}

}  // namespace
}  // namespace volley::apps
