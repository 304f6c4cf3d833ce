// What users and files name cannot steer the terminal.
#include "apps/console.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

TEST(Console, NotesAreOneLineWithTheProgramsName) {
  testing::internal::CaptureStderr();
  Console().note("field \"a\nb\"");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "volley: field \"a\\x0Ab\"\n");
}

}  // namespace
}  // namespace volley::apps
