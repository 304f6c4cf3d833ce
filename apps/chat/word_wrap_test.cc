// Answers on a terminal: a word that fits on a line is not cut, and only spaces at breaks are lost.
#include "apps/chat/word_wrap.h"

#include <gtest/gtest.h>

#include <clocale>

namespace volley::apps {
namespace {

// Passes the text in pieces of `piece` bytes.
std::string wrapped_in_pieces(std::string_view text, int columns, size_t piece) {
  std::string shown;
  WordWrap wrap([columns] { return columns; }, [&shown](std::string_view part) { shown += part; });
  for (size_t i = 0; i < text.size(); i += piece) wrap.add(text.substr(i, piece));
  wrap.flush();
  return shown;
}

std::string wrapped(std::string_view text, int columns) {
  return wrapped_in_pieces(text, columns, text.size());
}

TEST(WordWrap, LinesBreakBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 8), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("one two three", 0), "one two three") << "the width is not known";
  EXPECT_EQ(wrapped("one   two", 5), "one\ntwo");
  EXPECT_EQ(wrapped_in_pieces("one two three four", 9, 1), "one two\nthree\nfour") << "as it streams";
}

TEST(WordWrap, LineEndsAndIndentsStay) {
  EXPECT_EQ(wrapped("one\n\n  two three\n", 7), "one\n\n  two\nthree\n");
  EXPECT_EQ(wrapped("def f():\n    return 1\n", 40), "def f():\n    return 1\n");
  EXPECT_EQ(wrapped("a\tb c", 10), "a\tb\nc") << "a tab goes to the next eighth column";
  EXPECT_EQ(wrapped("one    \ntwo", 5), "one\ntwo") << "spaces at the edge are no line";
}

TEST(WordWrap, AWordLongerThanALineIsCut) {
  EXPECT_EQ(wrapped("a abcdefghij b", 4), "a\nabcd\nefgh\nij b");
  EXPECT_EQ(wrapped_in_pieces("abcdefgh", 4, 1), "abcd\nefgh");
}

TEST(WordWrap, ColoursTakeNoRoomAndCutNoWord) {
  EXPECT_EQ(wrapped("\x1b[32mone\x1b[0m\x1b[1mtwo\x1b[0m \x1b[32mthree\x1b[0m", 9),
            "\x1b[32mone\x1b[0m\x1b[1mtwo\x1b[0m\n\x1b[32mthree\x1b[0m");
  EXPECT_EQ(wrapped("one\x1b[1m two\x1b[0m", 5), "one\x1b[1m\ntwo\x1b[0m");
}

TEST(WordWrap, CharactersCountByTheirWidth) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  EXPECT_EQ(wrapped("\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xB6\xC3\xB6", 6), "\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xB6\xC3\xB6");
  EXPECT_EQ(wrapped("\xC3\xA4\xC3\xA4\xC3\xA4 \xC3\xB6\xC3\xB6", 5), "\xC3\xA4\xC3\xA4\xC3\xA4\n\xC3\xB6\xC3\xB6");
  const std::string kanji = "\xE6\xBC\xA2";
  EXPECT_EQ(wrapped(kanji + kanji + kanji, 5), kanji + kanji + "\n" + kanji) << "two columns each, no spaces";
  EXPECT_EQ(wrapped("e\xCC\x81te ab", 6), "e\xCC\x81te ab") << "an accent of its own has no width";
  std::setlocale(LC_CTYPE, "C");
}

}  // namespace
}  // namespace volley::apps
