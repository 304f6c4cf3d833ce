#include "serve/events/cache_event_batch.h"

#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMedium = "GPU";

bool continues(const CacheEvent& before, const CacheEvent& event) {
  return event.kind == CacheEvent::Kind::kStored && event.parent == before.hash && event.page_size == before.page_size;
}

// `pages`: one or more, each the parent of the next.
Json stored(std::span<const CacheEvent> pages) {
  const CacheEvent& first = pages.front();
  Json hashes = Json::array();
  Json tokens = Json::array();
  for (const CacheEvent& page : pages) {
    hashes.push_back(page.hash);
    for (const TokenId token : page.tokens) tokens.push_back(token);
  }
  Json event = {{"type", "BlockStored"},
                {"block_hashes", std::move(hashes)},
                {"parent_block_hash", first.parent == 0 ? Json(nullptr) : Json(first.parent)},
                {"token_ids", std::move(tokens)},
                {"block_size", first.page_size},
                {"lora_id", nullptr},
                {"medium", kMedium},
                {"lora_name", nullptr}};
  if (first.parent == 0 && !first.cache_namespace.empty()) {
    Json keys = Json::array({Json::array({first.cache_namespace})});
    for (size_t page = 1; page < pages.size(); ++page) keys.push_back(nullptr);
    event["extra_keys"] = std::move(keys);
  }
  event["group_idx"] = 0;
  event["kv_cache_spec_kind"] = "full_attention";
  return event;
}

Json removed(std::span<const CacheEvent> pages) {
  Json hashes = Json::array();
  for (const CacheEvent& page : pages) hashes.push_back(page.hash);
  return {{"type", "BlockRemoved"}, {"block_hashes", std::move(hashes)}, {"medium", kMedium}, {"group_idx", 0}};
}

// Number of events, from the first on, that become one.
size_t run_length(std::span<const CacheEvent> events) {
  size_t count = 1;
  switch (events.front().kind) {
    case CacheEvent::Kind::kStored:
      while (count < events.size() && continues(events[count - 1], events[count])) ++count;
      break;
    case CacheEvent::Kind::kRemoved:
      while (count < events.size() && events[count].kind == CacheEvent::Kind::kRemoved) ++count;
      break;
    case CacheEvent::Kind::kCleared:
      break;
  }
  return count;
}

Json one_event(std::span<const CacheEvent> run) {
  switch (run.front().kind) {
    case CacheEvent::Kind::kStored:
      return stored(run);
    case CacheEvent::Kind::kRemoved:
      return removed(run);
    case CacheEvent::Kind::kCleared:
      break;
  }
  return {{"type", "AllBlocksCleared"}};
}

}  // namespace

std::vector<uint8_t> encode_cache_events(double seconds, std::span<const CacheEvent> events, int rank) {
  Json list = Json::array();
  while (!events.empty()) {
    const size_t count = run_length(events);
    list.push_back(one_event(events.first(count)));
    events = events.subspan(count);
  }
  return Json::to_msgpack(Json::array({seconds, std::move(list), rank}));
}

}  // namespace volley::serve
