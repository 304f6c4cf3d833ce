// Names from users and files cannot control the terminal.
#include "apps/console.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

TEST(Console, NotesAreOneLineWithTheProgramsName) {
  testing::internal::CaptureStderr();
  Console().note("field \"a\nb\"");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "volley: field \"a\\x0Ab\"\n");
}

TEST(Console, SentencesAreBounded) {
  testing::internal::CaptureStderr();
  Console().error(std::string(1'000'000, 'A'));
  EXPECT_LT(testing::internal::GetCapturedStderr().size(), 4200u);
}

}  // namespace
}  // namespace volley::apps
