// Protects: a message is read as it was written, and a message that was changed on the way is refused.
#include "net/bytes.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace volley::net {
namespace {

TEST(Bytes, ComeBackAsTheyWere) {
  ByteWriter out;
  out.put<uint8_t>(7);
  out.put(true);
  out.put<int64_t>(-5);
  out.put(1.5f);
  out.put_string("two words");
  const std::vector<int32_t> numbers = {1, -2, 3};
  out.put_array(std::span<const int32_t>(numbers));
  out.put_array(std::span<const int32_t>());
  ByteReader in(out.bytes());
  EXPECT_EQ(in.take<uint8_t>(), 7);
  EXPECT_TRUE(in.take<bool>());
  EXPECT_EQ(in.take<int64_t>(), -5);
  EXPECT_EQ(in.take<float>(), 1.5f);
  EXPECT_EQ(in.take_string(9, "text"), "two words");
  EXPECT_EQ(in.take_array<int32_t>(3, "numbers"), numbers);
  EXPECT_TRUE(in.take_array<int32_t>(3, "numbers").empty());
  EXPECT_TRUE(in.finish("It").ok());
}

std::string refusal(ByteReader& in) {
  const Status status = in.finish("The message");
  return status.ok() ? "" : status.error().message;
}

TEST(Bytes, SayWhatIsWrong) {
  ByteWriter out;
  out.put<uint32_t>(4);
  ByteReader longer(out.bytes());
  longer.take<int64_t>();
  EXPECT_EQ(longer.take<int32_t>(), 0) << "after a failure there is nothing";
  EXPECT_EQ(refusal(longer), "The message cannot be read: it ends too early.");
  ByteReader left_over(out.bytes());
  EXPECT_EQ(refusal(left_over), "The message cannot be read: 4 bytes are left over.");
  ByteReader too_many(out.bytes());
  EXPECT_TRUE(too_many.take_array<int32_t>(3, "the list").empty());
  EXPECT_EQ(refusal(too_many), "The message cannot be read: the list has 4 values, more than 3.");
  ByteReader outside(out.bytes());
  EXPECT_EQ(outside.take_within<int32_t>(0, 3, "the slot"), 0);
  EXPECT_EQ(refusal(outside), "The message cannot be read: the slot is 4, not within 0 and 3.");
}

TEST(Bytes, ALengthThatLiesTakesNoMemory) {
  ByteWriter out;
  out.put(std::numeric_limits<uint32_t>::max());
  ByteReader in(out.bytes());
  EXPECT_EQ(in.take_array<int64_t>(std::numeric_limits<size_t>::max(), "x").capacity(), 0u);
  EXPECT_TRUE(in.failed());
}

TEST(Bytes, WhatIsNoNumberIsOutsideOfEveryRange) {
  ByteWriter out;
  out.put(std::numeric_limits<float>::quiet_NaN());
  ByteReader in(out.bytes());
  EXPECT_EQ(in.take_within<float>(-1, 1, "x"), -1);
  EXPECT_TRUE(in.failed());
}

// For any bytes, a reader ends with a value or an error.
TEST(Bytes, OfAnyKindDoNoHarm) {
  std::minstd_rand random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(random() % 40);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() % 3 == 0 ? random() : random() % 4);
    ByteReader in(bytes);
    const auto numbers = in.take_array<int32_t>(6, "numbers");
    EXPECT_LE(numbers.size(), 6u);
    EXPECT_LE(in.take_string(10, "text").size(), 10u);
    const auto small = in.take_within<int16_t>(-3, 3, "small");
    EXPECT_TRUE(small >= -3 && small <= 3);
    in.take<bool>();
    EXPECT_EQ(in.finish("It").ok(), !in.failed());
  }
}

}  // namespace
}  // namespace volley::net
