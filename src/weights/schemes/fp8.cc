// e4m3 with a scale for the matrix, for each row or for each block.
#include "weights/schemes/finder.h"

namespace volley::weights {
namespace {

struct Fp8Layout {
  int64_t first_row = 0;  // first row in the matrix of scales
  int64_t block_rows = 0, block_columns = 0;
  int64_t scale_columns = 0;
};

class Fp8Matrix final : public CodedMatrix {
 public:
  Fp8Matrix(const CodeFormat& format, int64_t rows, int64_t columns, const Fp8Layout& layout, SourceTensor codes,
            std::vector<float> scales)
      : CodedMatrix(format, rows, columns), layout_(layout), scales_(std::move(scales)) {
    sources_ = {std::move(codes)};
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t*, float*) const override {
    const int64_t at = layout_.first_row + place.row;
    std::memcpy(codes, sources_[0].data + at * columns() + place.first, static_cast<size_t>(place.n));
    const float* from = &scales_[at / layout_.block_rows * layout_.scale_columns];
    std::copy_n(from, groups(), scales);
  }

 private:
  Fp8Layout layout_;
  std::vector<float> scales_;
};

int64_t count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

}  // namespace

Result<std::optional<Codes>> find_fp8(const Finder& finder) {
  const int64_t rows = finder.whole_rows(), columns = finder.columns();
  VOLLEY_RETURN_IF_ERROR(finder.check("weight", {"F8_E4M3"}, {rows, columns}));
  std::string suffix;
  for (const char* one : {"weight_scale_inv", "weight_scale", "scale_inv", "scale"}) {
    if (suffix.empty() && finder.has(one)) suffix = one;
  }
  if (suffix.empty()) {
    return finder.missing(finder.site().stacked ? "scale_inv" : "weight_scale_inv",
                          "nor \"" + finder.name(finder.site().stacked ? "scale" : "weight_scale") +
                              "\", one of which must hold the scales of its F8_E4M3 weights");
  }
  const TensorInfo scale = *finder.info(suffix);
  const Quantisation& q = finder.quantisation();
  Fp8Layout layout = {finder.first_row(), rows, columns, 1};
  CodeFormat format;
  format.name = "fp8";
  Shape of_one = scale.shape;  // shape of one matrix of a stack
  if (finder.site().stacked && !of_one.empty()) of_one.erase(of_one.begin());
  const bool one = count(of_one) == 1, one_a_row = of_one == Shape{rows} || of_one == Shape{rows, 1};
  if (q.block_rows > 0) {
    layout.block_rows = q.block_rows;
    layout.block_columns = q.block_columns;
    layout.scale_columns = groups_of(columns, q.block_columns);
    format.group = q.block_columns;
    // A matrix that is a part of another may begin inside a block.
    if (finder.site().parts == 1) format.block_rows = q.block_rows;
    format.name += " in blocks of " + std::to_string(q.block_rows) + "x" + std::to_string(q.block_columns);
    of_one = {groups_of(rows, q.block_rows), layout.scale_columns};
  } else if (one) {
    format.name += " with one scale";
  } else {
    layout.block_rows = 1;
    format.name += " with a scale for each row";
    if (!one_a_row) of_one = {rows, 1};
  }
  VOLLEY_RETURN_IF_ERROR(finder.check(suffix, {"F32", "BF16", "F16", "F8_E8M0"}, of_one));
  format.bytes = finder.bytes({"weight", suffix});
  return std::optional(Codes{format, [=]() -> Result<std::shared_ptr<const CodedMatrix>> {
                               VOLLEY_ASSIGN(SourceTensor codes, finder.read("weight"));
                               VOLLEY_ASSIGN(std::vector<float> scales, finder.read_floats(suffix));
                               return std::shared_ptr<const CodedMatrix>(std::make_shared<Fp8Matrix>(
                                   format, finder.rows(), columns, layout, std::move(codes), std::move(scales)));
                             }});
}

}  // namespace volley::weights
