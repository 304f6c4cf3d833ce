// Protects the promise of the reserve: it is there when memory runs out, and comes back when there is some again. In
// processes of their own, which have the limit of address space.
#include "base/memory_reserve.h"
#include "base/address_space_for_test.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "base/sanitized.h"

namespace volley {
namespace {

void* try_new(size_t bytes) {
  try {
    return ::operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void expect(bool condition, int code) {
  if (!condition) std::_Exit(code);
}

constexpr size_t kHuge = size_t{1} << 40, kInside = kMemoryReserveBytes - (size_t{1} << 20);

TEST(MemoryReserve, IsGivenBackWhenMemoryRunsOutAndTakenAgain) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new and more address space than a limit leaves";
  const auto run = [] {
    keep_memory_reserve();
    limit_address_space(address_space());
    expect(has_memory_reserve(), 1);
    expect(try_new(kHuge) == nullptr, 2);  // an allocation that nothing helps fails as ever
    void* inside = try_new(kInside);       // what was kept back is there for others
    expect(inside != nullptr, 4);
    expect(!has_memory_reserve(), 5);
    expect(try_new(kHuge) == nullptr, 6);  // without a reserve as well
    ::operator delete(inside);
    expect(has_memory_reserve(), 7);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// A destructor and all else that may not fail.
TEST(MemoryReserve, TheAllocationThatFoundNothingIsTriedAgain) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new and more address space than a limit leaves";
  const auto run = [] {
    keep_memory_reserve();
    limit_address_space(address_space());
    expect(try_new(kInside) != nullptr, 1);
    expect(!has_memory_reserve(), 2);
    expect(try_new(kMemoryReserveBytes) == nullptr, 3);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// Blocks that are in use pin the address space of the heap around them.
TEST(MemoryReserve, IsTakenFromWhatTheHeapHasFree) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new and more address space than a limit leaves";
  const auto run = [] {
    constexpr size_t kBlock = size_t{64} << 10, kBlocks = 1024;  // small enough to be no mappings of their own
    keep_memory_reserve();
    std::vector<void*> blocks;
    for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(::operator new(kBlock));
    void* last = ::operator new(kBlock);
    limit_address_space(address_space());
    expect(try_new(kInside) != nullptr, 1);  // for good
    expect(!has_memory_reserve(), 2);
    for (void* block : blocks) ::operator delete(block);
    expect(has_memory_reserve(), 3);
    ::operator delete(last);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(MemoryReserve, IsSmallWhereTheLimitIs) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has its own operator new and more address space than a limit leaves";
  const auto run = [] {
    const size_t before = address_space();
    limit_address_space(before + (size_t{160} << 20));
    keep_memory_reserve();
    const size_t kept = address_space() - before;
    expect(kept > size_t{4} << 20 && kept < size_t{40} << 20, 1);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(MemoryReserve, WhereNoneIsKeptNoneIsMissed) {
  EXPECT_TRUE(has_memory_reserve());
  EXPECT_EQ(std::get_new_handler(), nullptr);
}

}  // namespace
}  // namespace volley
