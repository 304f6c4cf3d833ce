// Protects the end by a signal where there is no memory: in order as soon as there is some, else at once. In processes
// of their own, as the watch blocks signals.
#include "apps/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <thread>

#include "apps/exit_codes.h"

namespace volley::apps {
namespace {

// The process ends with 7 where the handler is called once more than it finds no memory.
void meet_sigterm(int failures) {
  InterruptWatch watch;
  const InterruptScope scope(&watch, [&failures] {
    if (failures-- > 0) throw std::bad_alloc();
    ::_exit(7);
  });
  ::kill(::getpid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::minutes(1));
}

TEST(InterruptWatch, CallsAHandlerWithoutMemoryAgain) {
  EXPECT_EXIT(meet_sigterm(3), testing::ExitedWithCode(7), "");
}

TEST(InterruptWatch, EndsAtOnceWhereThereIsNone) {
  EXPECT_EXIT(meet_sigterm(1'000'000), testing::ExitedWithCode(kExitTerminated), "");
}

}  // namespace
}  // namespace volley::apps
