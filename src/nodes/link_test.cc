// Protects: a follower gets node 0's calls in order and answers them, and either side learns of the other's end while
// it waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/check.h"
#include "device/fault.h"
#include "nodes/follower.h"
#include "nodes/leader.h"
#include "nodes/limits_for_test.h"

namespace volley::nodes {
namespace {

using ::testing::HasSubstr;

struct Pair {
  std::unique_ptr<net::Connection> leader, follower;
};
Pair connected() {
  const auto soon = net::after(std::chrono::minutes(1));
  auto listener = net::Listener::bind({"127.0.0.1", 0});
  VOLLEY_CHECK(listener.ok());
  Pair pair;
  pair.follower = std::move(*net::Connection::connect({"127.0.0.1", (*listener)->port()}, soon));
  pair.leader = std::move(*(*listener)->accept(soon));
  return pair;
}

std::vector<std::unique_ptr<net::Connection>> one(std::unique_ptr<net::Connection> connection) {
  std::vector<std::unique_ptr<net::Connection>> all;
  all.push_back(std::move(connection));
  return all;
}

const std::vector<TokenId> kShortPrompt = {1, 2};
decode::SlotStart short_start() {
  decode::SlotStart short_start;
  short_start.sampling.prompt_length = 2;
  short_start.limits.max_tokens = 5;
  short_start.prompt = kShortPrompt;
  return short_start;
}

// A node's handling of its calls, without computing.
void answer_all(Follower& follower, std::vector<size_t>& kinds) {
  for (;;) {
    auto call = follower.next();
    ASSERT_TRUE(call.ok()) << call.error().message;
    if (std::holds_alternative<End>(call->message)) return;
    const auto& command = std::get<decode::Command>(call->message);
    kinds.push_back(command.index());
    if (const auto* started = std::get_if<decode::StartSlot>(&command)) {
      const bool room = started->slot != 3;
      ASSERT_TRUE(follower.reply(Answer{room ? Status() : resource_exhausted("no room on the other node")}).ok());
    }
    if (std::holds_alternative<decode::Wait>(command)) {
      ASSERT_TRUE(follower.reply(Report{7, 8}).ok());
    }
  }
}

TEST(Link, BringsCallsInOrderAndAnswersBack) {
  Pair pair = connected();
  Leader leader(one(std::move(pair.leader)));
  std::vector<size_t> kinds;
  std::vector<uint32_t> masks;
  std::thread node([&] {
    Follower follower(std::move(pair.follower), limits());
    follower.set_hooks({[&](std::span<const uint32_t> words) -> Status {
                          masks.assign(words.begin(), words.end());
                          return {};
                        },
                        {}});
    ASSERT_TRUE(follower.reply(Ready{2, 30, 20, 10, {}, {}}).ok());
    answer_all(follower, kinds);
  });
  const auto ready = leader.ready();
  ASSERT_TRUE(ready.ok()) << ready.error().message;
  EXPECT_TRUE(ready->threads == 2 && ready->weight_bytes == 30 && ready->target_bytes == 20);
  leader.tell(decode::SetPage{0, 0, 1, PageId(3)});
  leader.tell(decode::StartSlot{2, short_start()});
  leader.flush();
  EXPECT_FALSE(decode::is_refusal(leader.answers(Status())));
  leader.tell(decode::StartSlot{3, short_start()});
  leader.flush();
  const auto refused = std::get<Status>(leader.answers(Status()));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  leader.tell(decode::ClearSlot{2});
  leader.masks(std::vector<uint32_t>{5, 6});
  leader.tell(decode::Wait{});
  leader.flush();
  const auto reports = leader.reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].digest == 7 && reports[0].experts_touched == 8);
  leader.end();
  node.join();
  EXPECT_EQ(masks, (std::vector<uint32_t>{5, 6}));
  const auto kind = [](const decode::Command& command) { return command.index(); };
  EXPECT_EQ(kinds, (std::vector<size_t>{kind(decode::SetPage{}), kind(decode::StartSlot{}), kind(decode::StartSlot{}),
                                        kind(decode::ClearSlot{}), kind(decode::Wait{})}));
}

TEST(Link, ANodeThatIsGoneEndsEveryWait) {
  Pair pair = connected();
  Leader leader(one(std::move(pair.leader)));
  std::promise<std::string> lost;
  leader.watch([&](const std::string& sentence) { lost.set_value(sentence); });
  std::thread node([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pair.follower.reset();
  });
  EXPECT_THROW(leader.reports(), DeviceFault);
  node.join();
  EXPECT_THAT(lost.get_future().get(), HasSubstr("is gone: the connection ended"));
  leader.tell(decode::Wait{});
  EXPECT_THROW(leader.flush(), DeviceFault);
  const auto ready = leader.ready();
  ASSERT_FALSE(ready.ok());
  EXPECT_THAT(ready.error().message, HasSubstr("Node 1 at 127.0.0.1:"));
  int told = 0;
  leader.watch([&](const std::string&) { ++told; });
  EXPECT_EQ(told, 1) << "who comes later learns it, too";
}

TEST(Link, ANodeThatFailsSaysWhy) {
  Pair pair = connected();
  Leader leader(one(std::move(pair.leader)));
  Follower follower(std::move(pair.follower), limits());
  ASSERT_TRUE(follower.reply(Failed{"The disk is broken."}).ok());
  const auto ready = leader.ready();
  ASSERT_FALSE(ready.ok());
  EXPECT_THAT(ready.error().message, HasSubstr("is gone: The disk is broken."));
  int told = 0;
  leader.watch([&](const std::string&) { ++told; });
  EXPECT_EQ(told, 1);
}

TEST(Link, AFollowerWaitsForNewsOfNodeZero) {
  using namespace std::chrono_literals;
  Pair pair = connected();
  Follower follower(std::move(pair.follower), limits());
  EXPECT_FALSE(follower.lost_within(0ms)) << "it is there";
  std::thread node([&] {
    std::this_thread::sleep_for(20ms);
    pair.leader.reset();
  });
  const auto lost = follower.lost_within(1h);
  node.join();
  ASSERT_TRUE(lost);
  EXPECT_THAT(lost->message, HasSubstr("Node 0 at 127.0.0.1:"));
}

TEST(Link, AnAnswerThatNobodyAskedForEndsIt) {
  Pair pair = connected();
  Leader leader(one(std::move(pair.leader)));
  Follower follower(std::move(pair.follower), limits());
  ASSERT_TRUE(follower.reply(Report{}).ok());
  EXPECT_THROW(leader.answers(Status()), DeviceFault);
}

TEST(Link, AnAnswerToAnotherCommandEndsIt) {
  Pair pair = connected();
  Leader leader(one(std::move(pair.leader)));
  Follower follower(std::move(pair.follower), limits());
  ASSERT_TRUE(follower.reply(Answer{decode::StepResults()}).ok());
  EXPECT_THROW(leader.answers(Status()), DeviceFault);
}

TEST(Link, TheFirstNodesEndEndsTheOthers) {
  Pair pair = connected();
  auto leader = std::make_unique<Leader>(one(std::move(pair.leader)));
  Follower follower(std::move(pair.follower), limits());
  std::promise<void> lost;
  follower.set_hooks({{}, [&] { lost.set_value(); }});
  std::thread end([&] { leader.reset(); });
  const auto call = follower.next();
  ASSERT_FALSE(call.ok());
  EXPECT_EQ(call.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(call.error().message, HasSubstr("Node 0 at 127.0.0.1:"));
  lost.get_future().get();
  end.join();
  EXPECT_FALSE(follower.reply(Answer{}).ok());
}

TEST(Link, WhatCannotBeReadEndsIt) {
  for (const bool masks : {false, true}) {
    Pair pair = connected();
    Follower follower(std::move(pair.follower), limits());
    Bytes bytes;
    if (masks) {
      append_call(bytes, Masks{{1}});  // no hook can take them yet
    } else {
      append_call(bytes, decode::ClearSlot{99});
    }
    ASSERT_TRUE(pair.leader->send(bytes).ok());
    const auto call = follower.next();
    ASSERT_FALSE(call.ok());
    EXPECT_THAT(call.error().message, HasSubstr(masks ? "masks came before" : "the slot is 99"));
    const auto frame = net::receive_frame(*pair.leader, 1 << 20);
    ASSERT_TRUE(frame.ok()) << "the other side learns it";
    const auto said = read_reply(*frame);
    ASSERT_TRUE(said.ok() && std::holds_alternative<Failed>(*said));
    EXPECT_THAT(call.error().message, HasSubstr(std::get<Failed>(*said).sentence));
    std::byte none;
    EXPECT_FALSE(pair.leader->receive(std::span(&none, 1)).ok());
  }
}

}  // namespace
}  // namespace volley::nodes
