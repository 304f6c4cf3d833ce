// Colours must not change the text, and must mark its drafted parts.
#include "apps/generate/token_colours.h"

#include <gtest/gtest.h>

#include <map>

namespace volley::apps {
namespace {

const std::map<TokenId, std::string> kVocabulary = {{0, ""},         {1, "a"},    {2, "bc"},
                                                    {3, "\xe2\x82"}, {4, "\xac"}, {5, " d"}};

// Decodes like a tokenizer: bytes that are no whole character become U+FFFD.
std::string decode(std::span<const TokenId> ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += kVocabulary.at(id);
  if (bytes.ends_with("\xe2\x82")) bytes.replace(bytes.size() - 2, 2, "\xef\xbf\xbd");
  return bytes;
}

Event event_of(std::vector<TokenId> tokens, int accepted, std::string text) {
  Event event;
  event.tokens = std::move(tokens);
  event.accepted = accepted;
  event.text = std::move(text);
  return event;
}

std::string without_codes(const std::string& painted) {
  std::string text;
  for (size_t i = 0; i < painted.size(); ++i) {
    if (painted[i] == '\x1b') {
      i = painted.find('m', i);
    } else {
      text += painted[i];
    }
  }
  return text;
}

TEST(TokenColours, DraftedTokensAndTheBonusLookDifferent) {
  TokenColours colours(decode);
  EXPECT_EQ(colours.paint(event_of({1, 2, 5}, 2, "abc d")), "\x1b[32mabc\x1b[0m\x1b[1m d\x1b[0m");
}

TEST(TokenColours, TextThatComesLateKeepsItsColour) {
  TokenColours colours(decode);
  EXPECT_EQ(colours.paint(event_of({1}, 1, "")), "");
  EXPECT_EQ(colours.paint(event_of({2}, 0, "abc")), "\x1b[32ma\x1b[0m\x1b[1mbc\x1b[0m");
}

TEST(TokenColours, ACharacterOfTwoTokensStaysWhole) {
  TokenColours colours(decode);
  EXPECT_EQ(colours.paint(event_of({1, 3}, 1, "a")), "\x1b[32ma\x1b[0m");
  EXPECT_EQ(without_codes(colours.paint(event_of({4, 5}, 1, "\xe2\x82\xac d"))), "\xe2\x82\xac d");
}

TEST(TokenColours, TheTextIsKeptOverAnyLength) {
  TokenColours colours(decode);
  std::string expected, shown;
  for (int i = 0; i < 500; ++i) {
    const std::vector<TokenId> tokens = {static_cast<TokenId>(1 + i % 2), 5, static_cast<TokenId>(i % 3 == 0 ? 0 : 2)};
    expected += decode(tokens);
    shown += without_codes(colours.paint(event_of(tokens, i % 4, decode(tokens))));
  }
  EXPECT_EQ(shown, expected);
}

}  // namespace
}  // namespace volley::apps
