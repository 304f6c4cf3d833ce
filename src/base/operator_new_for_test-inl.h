// Puts a test's own rule before every allocation of its program. Included by one file of the program.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

// The file defines it: whether to refuse an allocation of so many bytes. Any thread. Allocates nothing.
static bool refuses_allocation(size_t size);

// Not inlined, or the compiler would see free() beside new and warn.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return refuses_allocation(size) ? nullptr : std::malloc(size == 0 ? 1 : size);
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
