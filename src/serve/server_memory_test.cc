// Protects the process where memory runs out: a request is refused, and nothing else ends.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "base/address_space_for_test.h"
#include "base/memory_reserve.h"
#include "base/sanitized.h"
#include "serve/server.h"
#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using namespace std::chrono_literals;

int status_of(uint16_t port, const std::string& path, const std::string& body) {
  const auto response = Client(port).post(path, body);
  return response ? response->status : 0;
}

std::string prompt_of(size_t bytes, const std::string& value) {
  std::string body = "{\"prompt\":[";
  while (body.size() + value.size() + 16 < bytes) body.append(value).append(",");
  return body + value + "]}";
}

// A process of its own, with a limit of address space.
TEST(ServerMemory, BodiesThatTakeAllOfItEndNothing) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process where memory runs out";
  const auto run = [] {
    limit_address_space(address_space() + (size_t{1} << 30));
    keep_memory_reserve();
    FakeEngine engine;
    const auto server = start_server(engine);
    const uint16_t port = server->port();
    if (status_of(port, kPath, kWhole) != 200) std::_Exit(1);
    std::vector<std::string> bodies;
    for (const char* value : {"[]", "{\"\":0}", "[1,1,1,1]", "1"}) bodies.push_back(prompt_of(2'000'000, value));
    for (const size_t more : {size_t{20}, size_t{80}}) {
      std::atomic<bool> begin{false};
      std::vector<std::thread> clients;
      for (int i = 0; i < 8; ++i) {
        clients.emplace_back([&, i] {
          while (!begin) std::this_thread::sleep_for(1ms);
          try {
            for (int again = 0; again < 2; ++again)
              status_of(port, kPath, bodies[static_cast<size_t>(i) % bodies.size()]);
          } catch (const std::exception&) {  // the client's part of the process has no memory either
          }
        });
      }
      limit_address_space(address_space() + (more << 20));
      begin = true;
      for (std::thread& client : clients) client.join();
      limit_address_space(RLIM_INFINITY);
      if (!eventually([&] { return status_of(port, kPath, kWhole) == 200; })) std::_Exit(2);
    }
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // without the heaps of the tests before
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(ServerMemory, WithoutTheReserveNoBodyIsTaken) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has more address space than a limit leaves";
  const auto run = [] {
    limit_address_space(address_space() + (size_t{1} << 30));
    keep_memory_reserve();
    FakeEngine engine;
    const auto server = start_server(engine);
    Client client(server->port());
    if (client.post(kPath, kWhole)->status != 200) std::_Exit(1);
    limit_address_space(address_space());
    void* taken = ::operator new(kMemoryReserveBytes - (size_t{1} << 20));
    const auto refused = client.post(kPath, kWhole);
    if (refused->status != 503 || refused->body.find("out_of_memory") == std::string::npos) std::_Exit(2);
    if (client.get("/health")->status != 200) std::_Exit(3);
    ::operator delete(taken);
    if (client.post(kPath, kWhole)->status != 200) std::_Exit(4);
    std::_Exit(0);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // without the heaps of the tests before
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace volley::serve
