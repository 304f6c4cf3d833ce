// Which part of a model a rank of a tensor-parallel group has: heads, inner widths (or, of Experts::by_expert, experts)
// and the vocabulary of the output head are divided among the ranks; routers, gates of shared experts, norms and the
// embedding are whole on each. What attention and feed-forward networks add to the residual stream is then summed over
// the ranks (comm/comm.h).
#pragma once

#include <volley/result.h>

#include <string>
#include <utility>
#include <vector>

#include "model/params.h"
#include "model/spec.h"

namespace volley::model {

// Whether the decoder can be divided among so many ranks. kInvalidArgument names what does not divide, and how many
// ranks it would be for. whose: "the target", for the sentence, as `option` is.
Status check_ranks(const Decoder& spec, int ranks, const std::string& whose,
                   const char* option = "--tensor-parallel-size");

// What a rank computes: the decoder with its heads, widths and experts (RouterRule::own_first); hidden size and
// vocabulary are the whole model's. Ranks beyond the number of KV heads, or of key heads of a gated delta rule, share
// them. REQUIRES: check_ranks(). For Network and kv_shapes(); its tensors are shard() of the whole decoder's list, not
// params() of this one.
// parts: a multiple of ranks; 0: as many. With more, layers are divided among so many, and a rank computes
// Decoder::parts of them, its own ones in order: each like a rank of that many, so all numbers of ranks up to `parts`
// have the same bits. REQUIRES: check_ranks() of that many.
Decoder shard_of(const Decoder& spec, int rank, int ranks, int parts = 0);

// What a rank has of a decoder's list. Names and the checkpoint's shapes stay; rows, ranges and columns are the rank's.
// Roles of the second and later parts of a layer begin with part_prefix().
std::vector<Param> shard(std::vector<Param> list, int rank, int ranks, int parts = 0);
// layer: "layers.3."
std::string part_prefix(const std::string& layer, int part);

// Which rows of an output head a rank has, (first, number): whole groups of ops::kSummaryGroup, an equal number on each
// rank but the last ones that have any. Ranks behind them have none.
std::pair<int64_t, int64_t> vocabulary_part(int64_t vocab, int rank, int ranks);

// Which experts of a layer replica `replica` of several serves, (first, number): all in order, as equally as they
// divide. A replica beyond their number has none. As ops::expert_owner() says.
std::pair<int32_t, int32_t> experts_part(int32_t experts, int replica, int replicas);
// What a replica holds of a decoder's list whose memory is its own: all but the other replicas' experts and their
// biases. REQUIRES: at least as many experts as replicas.
std::vector<Param> keep_experts_of(std::vector<Param> list, int replica, int replicas);

}  // namespace volley::model
