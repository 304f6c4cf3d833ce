#include <gtest/gtest.h>

#include <random>

#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> match;
  bool operator==(const Cut&) const = default;
};

// The definition, by trying every end: the first byte at which a stop string ends, and the longest one that ends there.
Cut search(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& stop : stops) {
      const bool ends_here = std::string_view(text).substr(0, end).ends_with(stop);
      if (ends_here && (longest == nullptr || stop.size() > longest->size())) longest = &stop;
    }
    if (longest != nullptr) return {text.substr(0, end - longest->size()), *longest};
  }
  return {text, std::nullopt};
}

Cut stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  StopMatcher matcher(stops);
  Cut cut;
  for (const std::string& piece : pieces) {
    const auto output = matcher.push(piece);
    EXPECT_TRUE(!cut.match || (output.text.empty() && !output.match));
    cut.text += output.text;
    if (output.match) cut.match = output.match;
  }
  cut.text += matcher.finish();
  return cut;
}

TEST(StopMatcher, CutsBeforeTheFirstMatch) {
  EXPECT_EQ(stream({"one END two END"}, {"END"}), (Cut{"one ", "END"}));
  EXPECT_EQ(stream({"no stop"}, {"END"}), (Cut{"no stop", std::nullopt}));
  EXPECT_EQ(stream({"anything"}, {}), (Cut{"anything", std::nullopt}));
  EXPECT_EQ(stream({"a", "", "b"}, {"ab"}), (Cut{"", "ab"}));
}

// "first" means the match that ends first; of two that end together the longer one hides more text.
TEST(StopMatcher, OverlappingStops) {
  EXPECT_EQ(stream({"xaab"}, {"ab", "aab"}), (Cut{"x", "aab"}));
  EXPECT_EQ(stream({"xaab"}, {"aab", "ab"}), (Cut{"x", "aab"}));
  EXPECT_EQ(stream({"abcd"}, {"abcd", "bc"}), (Cut{"a", "bc"}));
  EXPECT_EQ(stream({"aaab"}, {"aab"}), (Cut{"a", "aab"}));
}

// A match that ends where stop strings do not count is ordinary text; one that ends later counts, wherever it began.
TEST(StopMatcher, WhereStopsDoNotCount) {
  StopMatcher matcher({"aba", "END"});
  EXPECT_EQ(matcher.push("an END aba", false).text, "an END ab");
  const auto output = matcher.push("ba");
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(output.match, "aba");

  StopMatcher later({"END"});
  EXPECT_EQ(later.push("END one EN", false).text, "END one ");
  EXPECT_EQ(later.push("D").match, "END");

  StopMatcher never({"END"});
  EXPECT_EQ(never.push("END one EN", false).text, "END one ");
  EXPECT_EQ(never.push("D two", false).text, "END two");
  EXPECT_EQ(never.finish(), "");
}

TEST(StopMatcher, ShowsAtOnceWhatCannotBecomeAStop) {
  StopMatcher matcher({"</s>", "\n\n"});
  EXPECT_EQ(matcher.push("a<b").text, "a<b");
  EXPECT_EQ(matcher.push("x</").text, "x");
  EXPECT_EQ(matcher.push("s").text, "");
  EXPECT_EQ(matcher.push("\n").text, "</s");
  EXPECT_EQ(matcher.push("c").text, "\nc");
  EXPECT_EQ(matcher.push("<").text, "");
  EXPECT_EQ(matcher.finish(), "<");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, WholeSequencesStayWhole) {
  // è and é share their first byte: held text must still begin with a character.
  StopMatcher matcher({"é!"});
  EXPECT_EQ(matcher.push("è").text, "è");
  EXPECT_EQ(matcher.push("é").text, "");
  EXPECT_EQ(matcher.push("è").text, "éè");
}

TEST(StopMatcher, AgreesWithSearchingTheWholeTextForEverySplit) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto word = [&](int low, int high) {
    std::string text(draw(low, high), 'a');
    for (char& c : text) c = static_cast<char>('a' + draw(0, 1));
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(draw(0, 4));
    for (std::string& stop : stops) stop = word(1, 7);
    const std::string text = word(0, 24);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, draw(0, 5)));
      at += pieces.back().size();
    }
    const Cut expected = search(text, stops);
    ASSERT_EQ(stream(pieces, stops), expected) << text;
    matches += expected.match.has_value();
  }
  EXPECT_GT(matches, 5000);
  EXPECT_LT(matches, 19000);
}

TEST(StopMatcherDeathTest, RefusesAnEmptyStop) {
  EXPECT_DEATH(StopMatcher({"a", ""}), "must not be empty");
}

}  // namespace
}  // namespace volley::text
