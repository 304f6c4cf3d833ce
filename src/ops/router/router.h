// Chooses the experts of a mixture and their weights for each row, and orders the choices by expert, as products of
// experts take them (ops/grouped_linear).
//
// Batch invariance: a row's experts and weights depend only on that row's logits (or, simulated, on its slot and
// position): there is one path for any number of rows. Ties go to the lower expert. All in fp32.
#pragma once

#include <volley/result.h>

#include <cstdint>

#include "base/host_device.h"
#include "device/arena.h"

namespace volley::ops {

// How logits become scores and weights.
enum class RouterScore {
  // Chooses the highest logits. A weight is the softmax over all experts; renormalised, over the chosen ones.
  kSoftmax,
  kSigmoid,  // chooses the highest sums of sigmoid and choice bias; a weight is the sigmoid
};

inline constexpr int32_t kMaxExperts = 512;
inline constexpr int32_t kMaxExpertsPerRow = 16;

struct RouterRule {
  RouterScore score = RouterScore::kSoftmax;
  int32_t experts = 0;
  int32_t top_k = 0;
  // kSigmoid: experts lie in `groups` groups of equal size. Only those of `top_groups` groups can be chosen: of the
  // groups whose two highest scores have the greatest sums.
  int32_t groups = 1, top_groups = 1;
  bool renormalise = true;  // weights over their sum (kSigmoid: over the sum + sum_floor)
  float sum_floor = 1e-20f;
  float scaling = 1.0f;  // the final factor on the weights
  // The experts of this rank: own_count from own_first on, if other ranks have the others; own_count 0: all.
  int32_t own_first = 0, own_count = 0;

  VOLLEY_HOST_DEVICE int32_t own() const { return own_count > 0 ? own_count : experts; }
  // An expert's number among this rank's; -1: another rank has it.
  VOLLEY_HOST_DEVICE int32_t own_number(int32_t expert) const {
    const int32_t number = expert - own_first;
    return number >= 0 && number < own() ? number : -1;
  }
};

// kUnimplemented or kInvalidArgument for a rule that route() cannot follow, naming the number.
Status check_router(const RouterRule& rule);

// The routing of a pass's rows. Entry row * top_k + slot is a (row, slot) pair; slots are in order of descending score.
// Experts are this rank's, counted from its first. Device memory. An entry that is left out has expert -1 and weight 0,
// and is not grouped: all entries of a row that is left out, and those whose expert another rank has.
struct Routing {
  TensorView experts;  // [rows, top_k] int32
  TensorView weights;  // [rows, top_k] fp32
  // Entries by expert, and those of one expert in ascending order.
  TensorView entries;  // [rows * top_k] int32; only the first offsets[experts] are defined
  TensorView offsets;  // [experts + 1] int32: those of expert e are entries[offsets[e] .. offsets[e + 1])
  TensorView touched;  // [experts] int32: experts with entries, ascending; only the first touched_count[0] are defined
  TensorView touched_count;  // [1] int32
  int64_t spread = 0;        // the number of experts that entries are spread over, on all ranks
  // If rows() is only a bound: the approximate number of entries, which affects how kernels divide their work but no
  // bit. 0: rows() * top_k().
  int64_t likely_entries = 0;

  int64_t rows() const { return experts.shape[0]; }
  int64_t top_k() const { return experts.shape[1]; }
  int64_t expert_count() const { return offsets.shape[0] - 1; }
  int64_t likely() const { return likely_entries > 0 ? likely_entries : rows() * top_k(); }
};

Routing take_routing(Arena& scratch, const RouterRule& rule, int64_t rows);

// Simulated routing: instead of by logits, experts are chosen independently and with equal probability, for
// measurements (a model of random weights sends equal tokens to equal experts, which flatters it). Weights are scaling
// / top_k. The experts of a row are a function of seed, layer, its slot and its position.
struct SimulatedRouting {
  TensorView positions;  // [rows] int32; a null view: not simulated
  uint32_t seed = 0, layer = 0;
};

struct RouteCall {
  TensorView logits;          // [rows, experts] fp32: products of the router's matrix. Simulated: may be a null view
  TensorView logit_bias;      // [experts] fp32, added to logits; or a null view
  TensorView choice_bias;     // kSigmoid: [experts] fp32, added to scores to choose, not to weigh; or a null view
  TensorView expert_scale;    // [experts] fp32: a last factor on an expert's weights; or a null view
  TensorView row_slots;       // [rows] int32; or a null view: no row is left out
  int32_t skipped_slot = -1;  // rows of this slot are left out: they touch no expert
  SimulatedRouting simulated;
  TensorView zeroed;  // int32 of any shape that becomes 0: counters of kernels that follow; or a null view
  // Device memory, or null: the number of experts touched here is added to it. Read it when the stream's work is done.
  int64_t* touched_total = nullptr;
};

// Fills `out`. The launches depend only on the number of rows, experts and top_k, and do not wait for the host: a
// recorded graph uses the logits present when it runs. A NaN among a row's logits counts as the lowest when experts are
// chosen, and weights may become NaN by it. rows may be 0.
void route(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out);

// Which of several replicas has an expert: replica r of R has the experts [E r / R, E (r + 1) / R), rounded down.
VOLLEY_HOST_DEVICE inline int32_t expert_owner(int32_t expert, int32_t experts, int32_t replicas) {
  return ((expert + 1) * replicas - 1) / experts;
}

inline constexpr int32_t kMostRowParts = 8;

// Rows whose experts were already chosen.
struct ChosenRows {
  TensorView experts;  // [rows, top_k] int32, in the form of Routing::experts when one rank has all
  // [parts] int32 in device memory: the rows are divided into so many parts of equal size, of which the first counts[i]
  // rows of part i exist. Null: all rows exist.
  const int32_t* counts = nullptr;
  int32_t parts = 1;  // at most kMostRowParts
};

// The experts [first, first + count) of all; `zero` is the expert with number 0 in a Routing.
struct ExpertRange {
  int32_t first = 0, count = 0, zero = 0;
};

// Groups the entries of the experts `own`; entries of other experts, and of rows that do not exist, are left out. out:
// from take_routing() for as many experts as are numbered, and for `chosen`'s rows; its weights, and its entries of
// rows that do not exist, stay unchanged. touched_total: as in RouteCall. rows may be 0. On a GPU counts are read when
// the work runs. The CPU takes no counts.
void group_chosen(Stream& stream, const ChosenRows& chosen, const ExpertRange& own, const Routing& out,
                  int64_t* touched_total = nullptr);

}  // namespace volley::ops
