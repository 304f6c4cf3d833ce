// Work on several threads at once, for tests.
#pragma once

#include <concepts>
#include <ranges>
#include <thread>
#include <vector>

namespace volley {

// Calls body(i) for each i below `count` on a thread of its own, and returns when all have ended.
template <std::integral Count, typename Body>
void on_threads(Count count, const Body& body) {
  std::vector<std::jthread> threads;
  for (Count i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
}

// The same with each element of a container.
template <std::ranges::range Container, typename Body>
void on_threads(Container& container, const Body& body) {
  std::vector<std::jthread> threads;
  for (auto& element : container) threads.emplace_back([&body, &element] { body(element); });
}

}  // namespace volley
