#include "ops/attention/attention.h"

#include <array>
#include <string>

#include "ops/attention/attention_kernels.h"

namespace volley::ops {
namespace {

constexpr std::array kBackendNames = {"auto", "wgmma", "portable", "plain"};  // in the order of AttentionBackend
static_assert(kBackendNames.size() == static_cast<size_t>(AttentionBackend::kPlain) + 1);

void check_tensors(const Rows& rows, const RowView& view, const Attention& args) {
  const KvLayer& kv = args.kv;
  VOLLEY_CHECK(kv.base != nullptr && kv.page_size > 0 && kv.page_size % kKvTile == 0);
  VOLLEY_CHECK(kv.head_dim > 0 && kv.head_dim % 16 == 0);
  VOLLEY_CHECK(kv.head_dim <= (kv.v_in_k > 0 ? kMaxLatentKey : kMaxHeadDim));
  VOLLEY_CHECK(kv.v_in_k == 0 || (kv.v_in_k > 0 && kv.v_in_k % 16 == 0 && kv.v_in_k <= kMaxLatent));
  VOLLEY_CHECK(kv.v_in_k == 0 || (kv.v_in_k < kv.head_dim && kv.kv_heads == 1 && kv.k_scale == kv.v_scale));
  VOLLEY_CHECK(kv.dtype == DType::kBF16 || kv.dtype == DType::kF32 || kv.dtype == DType::kF8E4M3);
  VOLLEY_CHECK(kv.k_scale > 0 && kv.v_scale > 0);
  VOLLEY_CHECK(kv.kv_heads >= 1 && args.heads >= kv.kv_heads && args.heads % kv.kv_heads == 0);
  VOLLEY_CHECK(args.scale > 0);
  VOLLEY_CHECK(args.q.dtype == attention_dtype(kv.dtype) && args.out.dtype == args.q.dtype);
  VOLLEY_CHECK_EQ(args.q.dim(0), rows.rows);
  VOLLEY_CHECK_EQ(args.q.count(), int64_t{rows.rows} * args.heads * kv.head_dim);
  VOLLEY_CHECK_EQ(args.out.count(), int64_t{rows.rows} * args.heads * kv.value_dim());
  VOLLEY_CHECK(args.sinks.data == nullptr || (args.sinks.dtype == DType::kF32 && args.sinks.count() == args.heads));
  for (const TensorView* bound : {&view.begin, &view.end}) {
    VOLLEY_CHECK(bound->dtype == DType::kI32 && bound->count() >= rows.rows);
  }
  VOLLEY_CHECK(view.page_table.dtype == DType::kI32 && view.page_table.rank == 2);
}

}  // namespace

const char* attention_backend_name(AttentionBackend backend) {
  return kBackendNames.at(static_cast<size_t>(backend));
}

Result<AttentionBackend> parse_attention_backend(std::string_view name) {
  for (size_t i = 0; i < kBackendNames.size(); ++i) {
    if (name == kBackendNames[i]) return static_cast<AttentionBackend>(i);
  }
  return invalid_argument("Unknown attention backend \"" + std::string(name) +
                          "\": use auto, wgmma, portable or plain.");
}

Result<AttentionBackend> resolve_attention_backend(DeviceKind device, const GpuInfo& gpu, AttentionBackend asked,
                                                   DType kv, int32_t head_dim, int32_t v_in_k) {
  return kernels_on<AttentionKernels>(device).resolve_backend(gpu, asked, kv, head_dim, v_in_k);
}

AttentionWork plan_attention(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                             Arena& scratch) {
  return kernels_on<AttentionKernels>(stream).plan_attention(stream, rows, view, shape, scratch);
}

void attention(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch) {
  check_tensors(rows, view, args);
  kernels_on<AttentionKernels>(stream).attention(stream, rows, view, args, scratch);
}

}  // namespace volley::ops
