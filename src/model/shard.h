// The part of a model that a rank of a tensor-parallel group has. Ranks divide heads, inner widths (or, with
// Experts::by_expert, experts) and the vocabulary of the output head. Each rank has routers, gates of shared experts,
// norms and the embedding whole. The outputs of attention and feed-forward networks are summed over the ranks
// (comm/comm.h).
#pragma once

#include <volley/result.h>

#include <string>
#include <utility>
#include <vector>

#include "model/params.h"
#include "model/spec.h"

namespace volley::model {

// Whether the decoder can be divided among so many ranks. kInvalidArgument names the number that does not divide, and a
// number of ranks that would work. whose: "the target", for the error text.
Status check_ranks(const Decoder& spec, int ranks, const std::string& whose);

// The decoder that one rank computes: the decoder with its heads, widths and experts (RouterRule::own_first); hidden
// size and vocabulary are the whole model's. Ranks beyond the number of KV heads, or of key heads of a gated delta
// rule, share them. REQUIRES: check_ranks(). For Network and kv_shapes(); the rank's tensors are shard() of the whole
// decoder's list, not params() of this decoder.
Decoder shard_of(const Decoder& spec, int rank, int ranks);

// The rank's part of a decoder's list. Names and the checkpoint's shapes stay; rows, ranges and columns become the
// rank's.
std::vector<Param> shard(std::vector<Param> list, int rank, int ranks);

// The rows of an output head that a rank has, (first, number): whole groups of ops::kSummaryGroup. All ranks have
// equally many, except that the last ones may have fewer or none.
std::pair<int64_t, int64_t> vocabulary_part(int64_t vocab, int rank, int ranks);

// The experts of a layer that replica `replica` of several serves, (first, number): consecutive and divided as evenly
// as possible. A replica beyond their number has none. Agrees with ops::expert_owner().
std::pair<int32_t, int32_t> experts_part(int32_t experts, int replica, int replicas);
// The part of a decoder's list that a replica keeps in memory of its own: all but the other replicas' experts and their
// biases. REQUIRES: at least as many experts as replicas.
std::vector<Param> keep_experts_of(std::vector<Param> list, int replica, int replicas);

}  // namespace volley::model
