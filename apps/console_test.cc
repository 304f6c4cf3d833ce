// What users and files name cannot steer the terminal.
#include "apps/console.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

TEST(Console, ControlCharactersAreShownNotSent) {
  EXPECT_EQ(escape_controls("plain \"text\" \\ ü 日本"), "plain \"text\" \\ ü 日本");
  EXPECT_EQ(escape_controls("a\x1b[2Jb\nc\x7f"), "a\\x1B[2Jb\\x0Ac\\x7F");
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "31m"),
            "\\xC2\\x9B31m")
      << "the control sequence introducer of Latin-1";
  EXPECT_EQ(escape_controls("\x9bü\xff"), "\\x9Bü\\xFF") << "not UTF-8";
  EXPECT_EQ(escape_controls(std::string("\0", 1)), "\\x00");
}

TEST(Console, NotesAreOneLineWithTheProgramsName) {
  testing::internal::CaptureStderr();
  Console().note("field \"a\nb\"");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "volley: field \"a\\x0Ab\"\n");
}

}  // namespace
}  // namespace volley::apps
