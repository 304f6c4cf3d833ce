#include "ops/attention/attention.h"

#include <string>

#ifdef VOLLEY_CUDA
#include "ops/attention/attention_cuda.h"
#endif

namespace volley::ops {

// attention_cpu.cc
void attention_cpu(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch);

namespace {

void check_tensors(const Rows& rows, const RowView& view, const Attention& args) {
  const KvLayer& kv = args.kv;
  VOLLEY_CHECK(kv.base != nullptr && kv.page_size > 0 && kv.page_size % kKvTile == 0);
  VOLLEY_CHECK(kv.head_dim > 0 && kv.head_dim % 16 == 0 && kv.head_dim <= 256);
  VOLLEY_CHECK(kv.dtype == DType::kBF16 || kv.dtype == DType::kF32);
  VOLLEY_CHECK(kv.kv_heads >= 1 && args.heads >= kv.kv_heads && args.heads % kv.kv_heads == 0);
  VOLLEY_CHECK(args.scale > 0);
  VOLLEY_CHECK(args.q.dtype == kv.dtype && args.out.dtype == kv.dtype);
  VOLLEY_CHECK_EQ(args.q.dim(0), rows.rows);
  VOLLEY_CHECK_EQ(args.q.count(), int64_t{rows.rows} * args.heads * kv.head_dim);
  VOLLEY_CHECK_EQ(args.out.count(), args.q.count());
  for (const TensorView* bound : {&view.begin, &view.end}) {
    VOLLEY_CHECK(bound->dtype == DType::kI32 && bound->count() >= rows.rows);
  }
  VOLLEY_CHECK(view.page_table.dtype == DType::kI32 && view.page_table.rank == 2);
}

void check_segment(const Rows& rows, const RowView& view, int32_t page_size, const RowSegment& segment) {
  VOLLEY_CHECK(segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= rows.rows);
  VOLLEY_CHECK(segment.slot >= 0 && segment.slot < view.page_table.dim(0));
  const int32_t* begin = view.begin.as<int32_t>() + segment.row_begin;
  const int32_t* end = view.end.as<int32_t>() + segment.row_begin;
  for (int32_t i = 0; i < segment.rows; ++i) {
    VOLLEY_CHECK(begin[i] >= 0 && begin[i] < end[i]);
    VOLLEY_CHECK_LE(end[i], view.page_table.dim(1) * page_size);
  }
}

}  // namespace

const char* attention_backend_name(AttentionBackend backend) {
  switch (backend) {
    case AttentionBackend::kAuto:
      return "auto";
    case AttentionBackend::kWgmma:
      return "wgmma";
    case AttentionBackend::kPortable:
      return "portable";
    case AttentionBackend::kPlain:
      return "plain";
  }
  return "";
}

Result<AttentionBackend> parse_attention_backend(std::string_view name) {
  for (const AttentionBackend backend :
       {AttentionBackend::kAuto, AttentionBackend::kWgmma, AttentionBackend::kPortable, AttentionBackend::kPlain}) {
    if (name == attention_backend_name(backend)) return backend;
  }
  return invalid_argument("Unknown attention backend \"" + std::string(name) +
                          "\": use auto, wgmma, portable or plain.");
}

Result<AttentionBackend> resolve_attention_backend(DeviceKind device, AttentionBackend asked, [[maybe_unused]] DType kv,
                                                   [[maybe_unused]] int32_t head_dim) {
#ifdef VOLLEY_CUDA
  if (device == DeviceKind::kCuda) return resolve_attention_backend_cuda(asked, kv, head_dim);
#endif
  if (device == DeviceKind::kCpu && asked != AttentionBackend::kAuto) {
    return unimplemented("The attention backend \"" + std::string(attention_backend_name(asked)) +
                         "\" is a GPU's: the CPU has one of its own, with auto.");
  }
  return AttentionBackend::kAuto;
}

AttentionWork plan_attention([[maybe_unused]] Stream& stream, [[maybe_unused]] const Rows& rows,
                             [[maybe_unused]] const RowView& view, [[maybe_unused]] const HeadShape& shape,
                             [[maybe_unused]] Arena& scratch) {
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return plan_attention_cuda(stream, rows, view, shape, scratch);
#endif
  return {};
}

int64_t attention_work_bytes([[maybe_unused]] DeviceKind device, [[maybe_unused]] const Rows& bounds,
                             [[maybe_unused]] const HeadShape& shape) {
#ifdef VOLLEY_CUDA
  if (device == DeviceKind::kCuda) return attention_work_bytes_cuda(bounds, shape);
#endif
  return 0;
}

void attention(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch) {
  check_tensors(rows, view, args);
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return attention_cuda(stream, rows, view, args);
#endif
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "attention: this build has no CUDA kernels");
  for (int32_t i = 0; i < rows.n_segments; ++i) check_segment(rows, view, args.kv.page_size, rows.segments[i]);
  attention_cpu(stream, rows, view, args, scratch);
}

}  // namespace volley::ops
