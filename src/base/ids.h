// Numbers that must not be mixed up, each a type of its own. Each is one int32, so an array of them is an array of
// int32 for a kernel.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

namespace volley {

template <typename Tag>
struct TypedInt {
  int32_t value = 0;

  constexpr TypedInt() = default;
  constexpr explicit TypedInt(int32_t v) : value(v) {}
  friend constexpr auto operator<=>(TypedInt, TypedInt) = default;
  friend std::ostream& operator<<(std::ostream& os, TypedInt id) { return os << id.value; }
};

using SlotId = TypedInt<struct SlotTag>;  // a running request's row of the device state
using PageId = TypedInt<struct PageTag>;  // a page of a cache group

// Three numbers that "the position of a token" can mean. They agree for text (ops/step converts them); multimodal RoPE
// and windowed caches tell them apart.
using SequenceIndex = TypedInt<struct SequenceIndexTag>;  // index of a token in its request: prompt, then output
using RopePosition = TypedInt<struct RopePositionTag>;    // angle of the rotary embedding
using CachePosition = TypedInt<struct CachePositionTag>;  // where its K and V lie: page = position / page_size

}  // namespace volley

template <typename Tag>
struct std::hash<volley::TypedInt<Tag>> {
  size_t operator()(volley::TypedInt<Tag> id) const noexcept { return std::hash<int32_t>()(id.value); }
};
