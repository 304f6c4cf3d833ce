#include "ops/grouped_linear/grouped_linear.h"

#include <string>

#include "ops/grouped_linear/grouped_linear_kernels.h"
#include "ops/linear/linear_kernels.h"

namespace volley::ops {

bool experts_multiply_as_stored(DeviceKind device, const WeightFormat& format) {
  if (multiplies_as_stored(device, format)) return true;
  const bool group = format.group_k == 64 || format.group_k == 128;
  return device == DeviceKind::kCuda && format == WeightFormat(DType::kF8E4M3, 1, format.group_k) && group;
}

Result<ExpertWeights> pack_experts(Device& device, std::span<const WeightRows> parts, int64_t experts, int64_t k,
                                   WeightFormat format, LinearLayout layout) {
  if (k < 1 || experts < 1) {
    return invalid_argument("Weights of experts need at least one expert and one column, not " +
                            std::to_string(experts) + " and " + std::to_string(k) + ".");
  }
  if (format != DType::kBF16 && format != DType::kF32 && !experts_multiply_as_stored(device.kind(), format)) {
    return unimplemented("Weights of experts cannot be stored as " + format_name(format) +
                         " on this device: use bfloat16 or float32.");
  }
  const int64_t each = layout == LinearLayout::kGateUp ? 2 : 1;
  if (static_cast<int64_t>(parts.size()) != experts * each) {
    return invalid_argument(std::to_string(experts) + " experts need " + std::to_string(experts * each) +
                            " matrices here, not " + std::to_string(parts.size()) + ".");
  }
  VOLLEY_RETURN_IF_ERROR(check_parts(parts, format));
  for (const WeightRows& part : parts) {
    if (part.rows != parts[0].rows) {
      return invalid_argument("Experts must be matrices of one shape, not of " + std::to_string(parts[0].rows) +
                              " and " + std::to_string(part.rows) + " rows.");
    }
  }
  VOLLEY_CHECK_GE(parts[0].rows, 1);
  ExpertWeights w;
  w.experts = experts;
  w.n = parts[0].rows * each;
  w.k = k;
  w.format = format;
  w.layout = layout;
  return kernels_on<GroupedLinearKernels>(device.kind()).pack_experts(device, parts, std::move(w));
}

void grouped_linear(Stream& stream, const ExpertWeights& w, const Input& input, const Routing& routing, TensorView y,
                    const GroupedCall& call, const End& end) {
  const TensorView& x = input.values;
  const int64_t entries = routing.rows() * routing.top_k();
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2);
  VOLLEY_CHECK_EQ(routing.expert_count(), w.experts);
  VOLLEY_CHECK_EQ(x.shape[0], call.rows == GroupedRows::kIn ? routing.rows() : entries);
  VOLLEY_CHECK_EQ(x.shape[1], w.k);
  VOLLEY_CHECK_EQ(y.shape[0], entries);
  VOLLEY_CHECK_EQ(y.shape[1], w.layout == LinearLayout::kGateUp ? w.n / 2 : w.n);
  VOLLEY_CHECK(x.dtype == DType::kF32 || (x.dtype == DType::kBF16 && w.format.code != DType::kF32));
  VOLLEY_CHECK(y.dtype == DType::kF32 || y.dtype == DType::kBF16);
  VOLLEY_CHECK(has_gates(end.kind) == (w.layout == LinearLayout::kGateUp) && end.kind != EndKind::kAdd);
  VOLLEY_CHECK(end.kind != EndKind::kClampedSwiGlu || end.clamp.limit > 0);
  VOLLEY_CHECK(end.bias.data == nullptr || (end.bias.dtype == DType::kF32 && end.bias.count() == w.experts * w.n));
  VOLLEY_CHECK(end.summaries.whole == nullptr);
  if (entries == 0) return;
  kernels_on<GroupedLinearKernels>(stream).grouped_linear(stream, w, x, routing, y, call, end);
}

void combine_experts(Stream& stream, const Routing& routing, TensorView d, TensorView y, const ExpertShards& shards) {
  VOLLEY_CHECK(d.rank == 2 && y.rank == 2 && y.dtype == DType::kF32);
  VOLLEY_CHECK(d.dtype == DType::kF32 || d.dtype == DType::kBF16);
  VOLLEY_CHECK_EQ(y.shape[0], routing.rows());
  VOLLEY_CHECK_EQ(d.shape[0], routing.rows() * routing.top_k());
  VOLLEY_CHECK_EQ(d.shape[1], y.shape[1]);
  VOLLEY_CHECK(shards.shifts == nullptr || (shards.replicas >= 1 && shards.experts >= 1));
  if (y.shape[0] == 0) return;
  kernels_on<GroupedLinearKernels>(stream).combine_experts(stream, routing, d, y, shards);
}

}  // namespace volley::ops
