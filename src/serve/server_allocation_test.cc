// Refuses allocations of a server's threads, of the size of a connection and more: what that costs is a connection, and
// the server takes the next.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

static std::atomic<bool> refusing{false};
static std::atomic<int> refused{0};
static thread_local bool exempt = false;  // the test's own thread

constexpr size_t kRefusedFrom = 512;

// Not inlined, or the compiler would see free() beside new and warn.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (refusing && !exempt && size >= kRefusedFrom) {
    ++refused;
    return nullptr;
  }
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
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
