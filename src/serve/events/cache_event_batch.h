// Encodes news of the prefix cache for routers: MessagePack in vLLM's schema (vllm/distributed/kv_events.py, its form
// since 0.26: the batch is an array, each event a map with named fields).
#pragma once

#include <volley/cache_events.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace volley::serve {

// [seconds since 1970, events, rank], each event one of
//   {type: BlockStored, block_hashes, parent_block_hash, token_ids, block_size, lora_id: null, medium: GPU,
//    lora_name: null, group_idx: 0, kv_cache_spec_kind: full_attention}
//   {type: BlockRemoved, block_hashes, medium: GPU, group_idx: 0}
//   {type: AllBlocksCleared}
// Pages that follow each other in one prefix are one BlockStored. Where it begins a prefix of a cache_namespace it has
// extra_keys, too: [[namespace], null, ...], an entry for each page. `medium` is GPU on the CPU as well: it is the word
// for memory that can be reused at once.
std::vector<uint8_t> encode_cache_events(double seconds, std::span<const CacheEvent> events, int rank);

}  // namespace volley::serve
