// Protects the memory of the server from conversations that are kept, and tenants from one another.
#include "serve/response_store.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

std::vector<ResponseItem> said(const std::string& id, std::string text, std::string role = "user") {
  return {{ResponseItem::Kind::kMessage, id, std::move(role), std::move(text)}};
}

std::string conversation(const StoredTurn& turn) {
  ChatTurns turns;
  turn.add_conversation(turns);
  return turns.take();
}

void keep(ResponseStore& store, const std::string& id, std::shared_ptr<const StoredTurn> previous = nullptr,
          size_t bytes = 4) {
  auto turn = store.begin(std::move(previous), said("msg_" + id + "_in0", std::string(bytes, 'x')));
  ASSERT_TRUE(turn);
  store.finish("key 0", "resp_" + id, turn, said("msg_" + id + "_0", "y", "assistant"), "{}");
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
  for (const char* id : {"msg_a_1", "msg_b_0", "a", "_", "", "msg_a"}) {
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

// Turns that are gone from the store still count while a later one needs them.
TEST(ResponseStore, BytesAreBoundedWithAllThatLives) {
  constexpr size_t kBytes = 10000;
  ResponseStore store(1000, kBytes);
  keep(store, "0", nullptr, 1000);
  int turns = 1;
  for (int i = 1; i < 100; ++i, ++turns) {
    auto turn = store.begin(store.find("key 0", "resp_" + std::to_string(i - 1)), said("m", std::string(1000, 'x')));
    ASSERT_LE(store.bytes(), kBytes);
    if (!turn) break;
    store.finish("key 0", "resp_" + std::to_string(i), turn, {}, "{}");
    ASSERT_LE(store.bytes(), kBytes);
  }
  EXPECT_GE(turns, 6);
  EXPECT_LE(turns, 9);
  EXPECT_EQ(store.bytes(), 0u) << "all of the conversation had to go, and then there was nobody who needed it";
  EXPECT_FALSE(store.begin(nullptr, said("m", std::string(kBytes, 'x')))) << "larger than all of it";
  auto held = store.begin(nullptr, said("m", std::string(8000, 'x')));
  ASSERT_TRUE(held);
  EXPECT_EQ(store.count(), 0u) << "all else had to go";
  EXPECT_FALSE(store.begin(nullptr, said("m", std::string(2000, 'x')))) << "while a request holds its input";
  held.reset();
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, KeepsNothingWithoutRoom) {
  for (auto [count, bytes] : {std::pair<size_t, size_t>{0, 1 << 20}, {10, 0}}) {
    ResponseStore store(count, bytes);
    EXPECT_FALSE(store.begin(nullptr, {}));
  }
}

// Each turn ends the one before it: not on the stack.
TEST(ResponseStore, LongConversationsEnd) {
  ResponseStore store(2, size_t{1} << 30);
  std::shared_ptr<const StoredTurn> last;
  for (int i = 0; i < 200'000; ++i) {
    auto turn = store.begin(std::move(last), {});
    ASSERT_TRUE(turn);
    last = std::move(turn);
  }
  last.reset();
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace volley::serve
