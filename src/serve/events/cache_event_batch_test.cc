// Protects the bytes that routers decode.
#include "serve/events/cache_event_batch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using nlohmann::json;
using EventKind = CacheEvent::Kind;

json decoded(const std::vector<CacheEvent>& events, double seconds = 1.25, int rank = 0) {
  return json::from_msgpack(encode_cache_events(seconds, events, rank));
}

CacheEvent cleared() {
  CacheEvent event;
  event.kind = EventKind::kCleared;
  return event;
}

CacheEvent removed(uint64_t hash) {
  CacheEvent event;
  event.kind = EventKind::kRemoved;
  event.hash = hash;
  return event;
}

CacheEvent stored(uint64_t hash, uint64_t parent, std::vector<TokenId> tokens, std::string space = {}) {
  const auto size = static_cast<int32_t>(tokens.size());
  return {EventKind::kStored, hash, parent, std::move(tokens), size, std::move(space)};
}

TEST(CacheEventBatch, IsAnArrayOfTimeEventsAndRank) {
  const json batch = decoded({cleared()}, 1795536565.5, 3);
  EXPECT_EQ(batch, json::parse(R"([1795536565.5, [{"type": "AllBlocksCleared"}], 3])"));
}

TEST(CacheEventBatch, PagesOfOnePrefixAreOneEvent) {
  const uint64_t large = 0xfedcba9876543210;
  const json batch = decoded({stored(large, 0, {1, 2}), stored(7, large, {3, 4}), stored(9, 8, {5, 6})});
  ASSERT_EQ(batch[1].size(), 2u);
  EXPECT_EQ(batch[1][0], (json{{"type", "BlockStored"},
                               {"block_hashes", {large, 7}},
                               {"parent_block_hash", nullptr},
                               {"token_ids", {1, 2, 3, 4}},
                               {"block_size", 2},
                               {"lora_id", nullptr},
                               {"medium", "GPU"},
                               {"lora_name", nullptr},
                               {"group_idx", 0},
                               {"kv_cache_spec_kind", "full_attention"}}));
  EXPECT_EQ(batch[1][1].at("parent_block_hash"), 8);
  EXPECT_EQ(batch[1][1].at("block_hashes"), json({9}));
}

TEST(CacheEventBatch, ANamespaceIsAKeyOfTheFirstPage) {
  const json batch =
      decoded({stored(5, 0, {1}, "tenant"), stored(6, 5, {2}, "tenant"), removed(1), stored(8, 6, {3}, "tenant")});
  EXPECT_EQ(batch[1][0].at("extra_keys"), json::parse(R"([["tenant"], null])"));
  EXPECT_FALSE(batch[1][2].contains("extra_keys")) << "it does not begin the prefix";
}

TEST(CacheEventBatch, RemovedPagesAreOneEventAndOrderIsKept) {
  const json batch = decoded({removed(4), removed(3), stored(3, 0, {1}), removed(3)});
  ASSERT_EQ(batch[1].size(), 3u);
  EXPECT_EQ(batch[1][0],
            json::parse(R"({"type": "BlockRemoved", "block_hashes": [4, 3], "medium": "GPU", "group_idx": 0})"));
  EXPECT_EQ(batch[1][1].at("type"), "BlockStored");
  EXPECT_EQ(batch[1][2].at("block_hashes"), json({3}));
}

}  // namespace
}  // namespace volley::serve
