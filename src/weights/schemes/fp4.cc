// e2m1 in groups: MXFP4 (32, a power of two) and NVFP4 (16, e4m3, and one fp32 scale for the matrix). The lower half of
// a byte is the first of two columns.
#include "weights/schemes/finder.h"

namespace volley::weights {
namespace {

constexpr int64_t kMxGroup = 32, kNvGroup = 16;

// first_row: where this matrix begins in its tensors. Scales are multiplied by `whole`, or (divides) divided.
struct Fp4Layout {
  int64_t first_row = 0;
  float whole = 1;
  bool divides = false;
};

class Fp4Matrix final : public CodedMatrix {
 public:
  Fp4Matrix(const CodeFormat& format, const Finder& finder, const Fp4Layout& layout, std::string scale_type,
            SourceTensor codes, SourceTensor scales)
      : CodedMatrix(format, finder.rows(), finder.columns()), layout_(layout), scale_type_(std::move(scale_type)) {
    sources_ = {std::move(codes), std::move(scales)};
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t*, float*) const override {
    const int64_t at = layout_.first_row + place.row;
    const std::byte* bytes = sources_[0].data + at * columns() / 2;
    for (int64_t i = place.first; i < place.first + place.n; ++i)
      *codes++ = (static_cast<uint8_t>(bytes[i / 2]) >> (i % 2 * 4)) & 0xf;
    for (int64_t g = 0; g < groups(); ++g) {
      const float scale = float_at(sources_[1].data, scale_type_, at * groups() + g);
      scales[g] = layout_.divides ? scale / layout_.whole : scale * layout_.whole;
    }
  }

 private:
  Fp4Layout layout_;
  std::string scale_type_;
};

Result<CodeFormat> fp4_format(const Finder& finder, const std::string& codes, int64_t group) {
  if (finder.columns() % group != 0) {
    return finder.unbuilt(codes, "is of a matrix of " + std::to_string(finder.columns()) +
                                     " columns: built are multiples of " + std::to_string(group));
  }
  CodeFormat format;
  format.code = DType::kF4E2M1;
  format.group = static_cast<int32_t>(group);
  format.name = group == kMxGroup ? "mxfp4" : "nvfp4";
  return format;
}

}  // namespace

Result<std::optional<Codes>> find_fp4(const Finder& finder, const std::string& codes) {
  const int64_t n = finder.rows(), k = finder.columns();
  const std::optional<TensorInfo> scale = finder.info("weight_scale");
  if (!scale) return finder.missing("weight_scale", "which holds the scales of its 4-bit codes");
  const bool two_levels = scale->dtype == "F8_E4M3";
  const int64_t group = two_levels ? kNvGroup : kMxGroup;
  VOLLEY_ASSIGN(CodeFormat format, fp4_format(finder, codes, group));
  VOLLEY_RETURN_IF_ERROR(finder.check(codes, {"U8"}, {n, k / 2}));
  VOLLEY_RETURN_IF_ERROR(finder.check("weight_scale", {"F8_E4M3", "F8_E8M0", "U8"}, {n, k / group}));
  const bool divides = finder.has("weight_global_scale");
  const std::string whole = divides ? "weight_global_scale" : "weight_scale_2";
  if (two_levels) {
    const std::optional<TensorInfo> found = finder.info(whole);
    if (!found) return finder.missing(whole, "which holds the scale of its e4m3 scales");
    const Shape shape = found->shape.empty() ? Shape{} : Shape{1};
    VOLLEY_RETURN_IF_ERROR(finder.check(whole, {"F32"}, shape));
  }
  format.bytes = finder.bytes({codes, "weight_scale", whole});
  return std::optional(Codes{format, [=]() -> Result<std::shared_ptr<const CodedMatrix>> {
                               Fp4Layout layout = {0, 1, divides};
                               if (two_levels) {
                                 VOLLEY_ASSIGN(const std::vector<float> scales, finder.read_floats(whole));
                                 layout.whole = scales.at(0);
                               }
                               VOLLEY_ASSIGN(SourceTensor bytes, finder.read(codes));
                               VOLLEY_ASSIGN(SourceTensor scales, finder.read("weight_scale"));
                               return std::shared_ptr<const CodedMatrix>(std::make_shared<Fp4Matrix>(
                                   format, finder, layout, scale->dtype, std::move(bytes), std::move(scales)));
                             }});
}

Result<std::optional<Codes>> find_fp4_blocks(const Finder& finder) {
  const int64_t rows = finder.whole_rows(), blocks = groups_of(finder.columns(), kMxGroup);
  VOLLEY_ASSIGN(CodeFormat format, fp4_format(finder, "blocks", kMxGroup));
  VOLLEY_RETURN_IF_ERROR(finder.check("blocks", {"U8"}, {rows, blocks, kMxGroup / 2}));
  VOLLEY_RETURN_IF_ERROR(finder.check("scales", {"U8", "F8_E8M0"}, {rows, blocks}));
  format.bytes = finder.bytes({"blocks", "scales"});
  return std::optional(Codes{format, [=]() -> Result<std::shared_ptr<const CodedMatrix>> {
                               VOLLEY_ASSIGN(SourceTensor codes, finder.read("blocks"));
                               VOLLEY_ASSIGN(SourceTensor scales, finder.read("scales"));
                               return std::shared_ptr<const CodedMatrix>(
                                   std::make_shared<Fp4Matrix>(format, finder, Fp4Layout{finder.first_row()}, "U8",
                                                               std::move(codes), std::move(scales)));
                             }});
}

}  // namespace volley::weights
