// Protects the server's memory from stored conversations, and tenants from one another.
#include "serve/responses/response_store.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

std::vector<ResponseItem> said(const std::string& id, std::string text, std::string role = "user") {
  return {{ResponseItem::Kind::kMessage, id, std::move(role), std::move(text)}};
}

std::string conversation(const StoredTurn& turn) {
  ChatTurns turns;
  turn.for_each([&](const std::vector<ResponseItem>& items) { add_turns(items, turns); });
  return messages_json(turns.take());
}

void keep(ResponseStore& store, const std::string& id, std::shared_ptr<const StoredTurn> previous = nullptr,
          size_t bytes = 4, const std::string& tenant = "key 0") {
  auto turn = store.begin(tenant, std::move(previous), said("msg_" + id + "_in0", std::string(bytes, 'x')));
  ASSERT_TRUE(turn);
  store.finish(tenant, "resp_" + id, turn, said("msg_" + id + "_0", "y", "assistant"), "{}");
}

TEST(ResponseStore, GoesOnFromATurn) {
  ResponseStore store(10, 1 << 20);
  keep(store, "a");
  keep(store, "b", store.find("key 0", "resp_a"));
  const std::string both = R"([{"role":"user","content":"xxxx"},{"role":"assistant","content":"y"},)"
                           R"({"role":"user","content":"xxxx"},{"role":"assistant","content":"y"}])";
  EXPECT_EQ(conversation(*store.find("key 0", "resp_b")), both);
  EXPECT_TRUE(store.erase("key 0", "resp_a"));
  EXPECT_FALSE(store.erase("key 0", "resp_a"));
  EXPECT_EQ(conversation(*store.find("key 0", "resp_b")), both) << "the conversation keeps its turns";
}

TEST(ResponseStore, OneTenantSeesNothingOfAnother) {
  ResponseStore store(10, 1 << 20);
  keep(store, "a");
  EXPECT_FALSE(store.find("key 1", "resp_a"));
  EXPECT_FALSE(store.find_item("key 1", "msg_a_0"));
  EXPECT_FALSE(store.erase("key 1", "resp_a"));
  EXPECT_EQ(store.find_item("key 0", "msg_a_0")->text, "y");
  EXPECT_EQ(store.find_item("key 0", "msg_a_in0")->text, "xxxx");
  for (const char* id :
       {"msg_a_1", "msg_b_0", "msg_a_in1", "msg_a_in", "msg_a_in0x", "fc_a_in0", "a", "_", "", "msg_a"}) {
    EXPECT_FALSE(store.find_item("key 0", id)) << id;
  }
}

TEST(ResponseStore, TheLeastRecentlyUsedGoes) {
  ResponseStore store(2, 1 << 20);
  keep(store, "a");
  keep(store, "b");
  EXPECT_TRUE(store.find("key 0", "resp_a"));
  keep(store, "c");
  EXPECT_EQ(store.count(), 2u);
  EXPECT_FALSE(store.find("key 0", "resp_b"));
  EXPECT_TRUE(store.find("key 0", "resp_a"));
}

// A tenant's conversation survives any number of another one's short answers.
TEST(ResponseStore, WhoKeepsMostMakesRoom) {
  ResponseStore store(10, 1 << 20);
  keep(store, "b0", nullptr, 10'000, "key 1");  // more bytes than the other tenant's, but one answer
  keep(store, "b1", store.find("key 1", "resp_b0"), 4, "key 1");
  for (int i = 0; i < 100; ++i) keep(store, "a" + std::to_string(i));
  EXPECT_EQ(store.count(), 10u);
  EXPECT_TRUE(store.find("key 1", "resp_b0"));
  EXPECT_TRUE(store.find("key 1", "resp_b1"));
  EXPECT_FALSE(store.find("key 0", "resp_a91"));
  EXPECT_TRUE(store.find("key 0", "resp_a92"));
  for (int i = 2; i < 100; ++i) keep(store, "b" + std::to_string(i), nullptr, 4, "key 1");
  int others = 0;
  for (int i = 92; i < 100; ++i) others += store.find("key 0", "resp_a" + std::to_string(i)) ? 1 : 0;
  EXPECT_EQ(others, 5) << "who comes later gets as much";

  ResponseStore small(1000, 100'000);
  keep(small, "b", nullptr, 10'000, "key 1");
  for (int i = 0; i < 20; ++i) keep(small, "a" + std::to_string(i), nullptr, 20'000);
  EXPECT_TRUE(small.find("key 1", "resp_b")) << "and so do bytes";
  keep(small, "c", nullptr, 45'000, "key 1");
  EXPECT_TRUE(small.find("key 1", "resp_b"));
  EXPECT_TRUE(small.find("key 1", "resp_c"));
  EXPECT_TRUE(small.find("key 0", "resp_a19"));
  EXPECT_FALSE(small.begin("key 1", nullptr, said("m", std::string(90'000, 'x')))) << "not at the other's expense";
  EXPECT_TRUE(small.find("key 0", "resp_a19"));
}

// Dropped turns still count while a later one needs them.
TEST(ResponseStore, BytesAreBoundedWithAllThatLives) {
  constexpr size_t kBytes = 10000;
  ResponseStore store(1000, kBytes);
  keep(store, "0", nullptr, 1000);
  int turns = 1;
  for (int i = 1; i < 100; ++i, ++turns) {
    auto turn =
        store.begin("key 0", store.find("key 0", "resp_" + std::to_string(i - 1)), said("m", std::string(1000, 'x')));
    ASSERT_LE(store.bytes(), kBytes);
    if (!turn) break;
    store.finish("key 0", "resp_" + std::to_string(i), turn, {}, "{}");
    ASSERT_LE(store.bytes(), kBytes);
  }
  EXPECT_GE(turns, 6);
  EXPECT_LE(turns, 9);
  EXPECT_EQ(store.bytes(), 0u) << "all of the conversation had to go, and then there was nobody who needed it";
  EXPECT_FALSE(store.begin("key 0", nullptr, said("m", std::string(kBytes, 'x')))) << "larger than all of it";
  auto held = store.begin("key 0", nullptr, said("m", std::string(8000, 'x')));
  ASSERT_TRUE(held);
  EXPECT_EQ(store.count(), 0u) << "all else had to go";
  EXPECT_FALSE(store.begin("key 0", nullptr, said("m", std::string(2000, 'x')))) << "while a request holds its input";
  held.reset();
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, KeepsNothingWithoutRoom) {
  for (auto [count, bytes] : {std::pair<size_t, size_t>{0, 1 << 20}, {10, 0}}) {
    ResponseStore store(count, bytes);
    EXPECT_FALSE(store.begin("key 0", nullptr, {}));
  }
}

// Turns must not free each other recursively on the stack.
TEST(ResponseStore, LongConversationsEnd) {
  ResponseStore store(2, size_t{1} << 30);
  std::shared_ptr<const StoredTurn> last;
  for (int i = 0; i < 200'000; ++i) {
    auto turn = store.begin("key 0", std::move(last), {});
    ASSERT_TRUE(turn);
    last = std::move(turn);
  }
  last.reset();
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace volley::serve
