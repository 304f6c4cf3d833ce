// Events that describe the prefix cache of a replica, for a router that sends requests to replicas that have cached
// their beginnings.
//
// The unit is a whole page of full-attention layers (of a model without any: of positions), under the tokens before it.
// Replayed in order from an empty index, kStored adding a page and kRemoved taking it away, the events give exactly the
// pages of the prefix cache. Pages that only running requests hold are not there yet. The engine may reuse less than
// the index says, because a hit may need more than these pages: the ends of sequences inside a page, pages of sliding
// windows and snapshots of recurrent states make no events.
//
// A hash is that of all tokens (GenerateRequest::prompt_keys, where a request has some) up to the end of the page, and
// of the cache_namespace: two replicas of one version give equal prefixes equal hashes. It is no cryptographic hash: a
// collision costs a wrong guess of what is cached, never a token.
#pragma once

#include <volley/sampling.h>

#include <cstdint>
#include <string>
#include <vector>

namespace volley {

struct CacheEvent {
  enum class Kind {
    kStored,   // the page is cached, and was not; those before it are
    kRemoved,  // the page is no longer cached; pages after it were removed before it
    kCleared,  // the cache is empty, and no other field counts
  };
  Kind kind = Kind::kStored;
  uint64_t hash = 0;  // never 0
  // kStored only:
  uint64_t parent = 0;               // hash of the page before it; 0: the page is the first of its prefix
  std::vector<TokenId> tokens;       // tokens of the page, or their keys, page_size of them
  int32_t page_size = 0;             // positions
  std::string cache_namespace = {};  // GenerateRequest::cache_namespace, which may be a client's secret
};

}  // namespace volley
