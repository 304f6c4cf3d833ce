// Refuses allocations of a server's threads, of the size of a connection and more: what that costs is a connection, and
// the server takes the next.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/operator_new_for_test-inl.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

static std::atomic<bool> refusing{false};
static std::atomic<int> refused{0};
static thread_local bool exempt = false;  // the test's own thread

constexpr size_t kRefusedFrom = 512;

static bool refuses_allocation(size_t size) {
  const bool refuses = refusing && !exempt && size >= kRefusedFrom;
  if (refuses) ++refused;
  return refuses;
}

namespace volley::serve {
namespace {

using namespace std::chrono_literals;

TEST(ServerAllocation, AConnectionThatFindsNoMemoryEndsNoAccepting) {
  exempt = true;
  FakeEngine engine;
  const auto server = start_server(engine);
  ASSERT_EQ(Client(server->port()).get("/health")->status, 200);
  for (int i = 0; i < 5; ++i) {
    const int before = refused;
    refusing = true;
    Client lost(server->port());
    ASSERT_TRUE(eventually([&] { return refused > before; })) << "the connection was to be added";
    refusing = false;
    Client next(server->port());
    const auto health = next.get("/health");
    ASSERT_TRUE(health) << i;
    EXPECT_EQ(health->status, 200);
    EXPECT_EQ(next.post(kPath, kWhole)->status, 200);
  }
}

}  // namespace
}  // namespace volley::serve
