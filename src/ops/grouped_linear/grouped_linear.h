// Products of rows with the weights of the experts that they were routed to, and the weighted sum of the results:
//   h = silu(x G_e^T) * (x U_e^T),  d = h D_e^T,  y += sum over slots of weight * d,
// with biases and another activation where End says so.
//
// Batch invariance: the sums of an expert's product for a row are added in one fixed order that depends on the weight's
// shape and storage alone, whatever other rows the expert gets; combine_experts() adds in the order of slots. Only
// experts that have rows are read.
#pragma once

#include <volley/result.h>

#include <span>

#include "device/device.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace volley::ops {

// One matrix [n, k] for each expert, of one shape, packed for its device. Immutable; may be shared by threads.
struct ExpertWeights {
  int64_t experts = 0;
  int64_t n = 0, k = 0;  // sizes of one expert; n counts all rows of all parts
  WeightFormat format;   // kBF16, kF32 or codes in groups
  LinearLayout layout = LinearLayout::kPlain;
  Buffer packed;
  bool portable = false;  // CUDA: the kernel for GPUs without wgmma, on any GPU; the same bits
};

// Whether grouped_linear() has kernels for experts of codes of that format: the formats of linear(), and on CUDA also
// e4m3 with a scale for each 64 or 128 columns of a row.
bool experts_multiply_as_stored(DeviceKind device, const WeightFormat& format);

// Packs the parts of expert 0, then those of expert 1, …: one for each expert (kPlain), or gate and up (kGateUp), each
// [rows, k], of any strides. format as pack_linear() has it, without kFp8Rows. Errors as pack_linear(), and
// kInvalidArgument for experts of different shapes or a number of parts that is not experts times one or two.
Result<ExpertWeights> pack_experts(Device& device, std::span<const WeightRows> parts, int64_t experts, int64_t k,
                                   WeightFormat format, LinearLayout layout);

// How the rows of a product are ordered. Grouped row i belongs to entry routing.entries[i].
enum class GroupedRows {
  kIn,   // x: [rows, k], a row for each token; y: [rows * top_k, outputs], grouped
  kOut,  // x: [rows * top_k, k], grouped; y: [rows * top_k, outputs], row * top_k + slot
};

// The arguments of a grouped product beside its end.
struct GroupedCall {
  GroupedRows rows = GroupedRows::kIn;
  // CUDA; affects speed alone. True if the kernel right before this one in the stream has waited for the routing before
  // it let its successor start. This kernel then reads the routing and weights while that one runs. It holds for the
  // second of two grouped products that follow one another.
  bool routing_ready = false;
};

// y: [.., n] (gates and ups: [.., n / 2]), as linear() makes it of x and one expert's matrix. Built is all but kAdd,
// each with an optional bias, [experts, n] fp32, of gates and then ups where there are both; it is added before
// anything else. x and y: bf16 or fp32; fp32 weights want fp32 x. Rows of x and y that belong to no entry are neither
// read nor written. y must not overlap x. routing.rows() may be 0.
void grouped_linear(Stream& stream, const ExpertWeights& w, const Input& x, const Routing& routing, TensorView y,
                    const GroupedCall& call, const End& end);

// y[row] += sum over slots s = 0, 1, … of weights[row, s] * d[row * top_k + s]: products and sums in fp32, added to y
// at last. d: [rows * top_k, width], bf16 or fp32; y: [rows, width] fp32. Entries that were left out of the routing add
// nothing and are not read; a row without others stays.
//
// With shards the experts are divided among replicas (expert_owner(): routing.experts are numbers among all experts). d
// holds the results of this replica's experts; those of another replica's lie at the same place in its memory. CUDA.
struct ExpertShards {
  const int64_t* shifts = nullptr;  // [replicas], device memory: bytes from a place here to the same place there
  int32_t replicas = 1, experts = 0;
};
void combine_experts(Stream& stream, const Routing& routing, TensorView d, TensorView y,
                     const ExpertShards& shards = {});

}  // namespace volley::ops
