#include "weights/schemes/schemes.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "weights/schemes/finder.h"

namespace volley::weights {
namespace {

size_t element_size(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return dtype == "I64" ? 8 : 1;
}

// Suffixes of tensors beside codes.
constexpr std::array kBeside = {".weight_scale_inv",
                                ".weight_scale",
                                ".weight_scale_2",
                                ".weight_global_scale",
                                ".weight_zero_point",
                                ".weight_shape",
                                ".weight_g_idx",
                                ".qzeros",
                                ".scales",
                                ".g_idx",
                                ".input_scale",
                                ".input_global_scale",
                                ".input_zero_point",
                                ".k_scale",
                                ".v_scale",
                                ".q_scale",
                                ".kv_scale",
                                ".output_scale",
                                "_proj_scales",
                                "_proj_scale_inv",
                                "_proj_scale"};
// Suffixes that replace ".weight", or follow a stack's name.
constexpr std::array kInstead = {std::pair{".weight_packed", ".weight"}, std::pair{".qweight", ".weight"},
                                 std::pair{"_proj_blocks", "_proj"}};

bool is_plain(const std::string& dtype) {
  return dtype == "BF16" || dtype == "F16" || dtype == "F32";
}

}  // namespace

void CodedMatrix::widen(const Place& place, float* values) const {
  const auto count = static_cast<size_t>(groups());
  std::vector<uint8_t> codes(static_cast<size_t>(place.n)), zeros(count, format_.minimums ? 0 : 8);
  std::vector<float> scales(count), minimums(format_.minimums ? count : 0);
  read(place, codes.data(), scales.data(), format_.zeros ? zeros.data() : nullptr, minimums.data());
  for (int64_t i = 0; i < place.n; ++i) {
    const int64_t column = place.first + i;
    const int64_t group = format_.scattered ? group_of_column_[column] : format_.group > 0 ? column / format_.group : 0;
    float value = 0;
    switch (format_.code) {
      case DType::kF8E4M3:
        value = to_float(Float8E4M3{codes[i]});
        break;
      case DType::kF4E2M1:
        value = std::copysign(kFloat4E2M1[codes[i] & 7], (codes[i] & 8) == 0 ? 1.0f : -1.0f);
        break;
      case DType::kI8:
        value = static_cast<float>(static_cast<int8_t>(codes[i]));
        break;
      case DType::kI6:
        value = static_cast<float>(codes[i]) - 32;
        break;
      default:
        value = static_cast<float>(codes[i]) - static_cast<float>(zeros[group]);
        break;
    }
    values[i] = value * scales[group];
    if (format_.minimums) values[i] += minimums[group];
  }
}

Result<SourceTensor> Checkpoint::bytes(std::string_view name, uint64_t, uint64_t) const {
  return not_found(origin() + " has no tensor \"" + std::string(name) + "\".");
}

Result<std::shared_ptr<const CodedMatrix>> Checkpoint::coded(std::string_view name, std::span<const int64_t>) const {
  return not_found(origin() + " has no codes of \"" + std::string(name) + "\".");
}

float float_at(const std::byte* data, const std::string& dtype, int64_t i) {
  const size_t size = element_size(dtype);
  const std::byte* at = data + static_cast<size_t>(i) * size;
  if (dtype == "F32") {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (size == 1) {
    const auto code = static_cast<uint8_t>(*at);
    if (dtype == "F8_E4M3") return to_float(Float8E4M3{code});
    return code == 0xff ? std::nanf("") : std::ldexp(1.0f, code - 127);
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == "F16" ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

int32_t int_at(const std::byte* data, int64_t i) {
  int32_t value = 0;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(value)), sizeof(value));
  return value;
}

std::string Finder::name(const std::string& suffix) const {
  if (!site_.stacked) return site_.module + "." + suffix;
  return suffix == "weight" ? site_.module : site_.module + "_" + suffix;
}

Status Finder::check(const std::string& suffix, const std::vector<std::string>& dtypes, const Shape& shape) const {
  const std::optional<TensorInfo> found = info(suffix);
  if (!found) return missing(suffix, "which belongs to its codes");
  if (std::find(dtypes.begin(), dtypes.end(), found->dtype) == dtypes.end()) {
    std::string built;
    for (const std::string& dtype : dtypes) built += (built.empty() ? "" : " or ") + dtype;
    return wrong(suffix, "has dtype " + found->dtype + ", but must be " + built);
  }
  Shape whole = shape;
  if (site_.stacked) whole.insert(whole.begin(), site_.count);
  if (found->shape == whole) return {};
  return wrong(suffix, "has shape " + shape_text(found->shape) + ", but a matrix of " + std::to_string(site_.rows) +
                           " x " + std::to_string(site_.columns) + " asks for " + shape_text(whole));
}

Result<SourceTensor> Finder::read(const std::string& suffix) const {
  const uint64_t bytes = info(suffix)->bytes / static_cast<uint64_t>(site_.count);
  return files_->bytes(name(suffix), bytes * static_cast<uint64_t>(site_.index / site_.parts), bytes);
}

Result<std::vector<float>> Finder::read_floats(const std::string& suffix) const {
  VOLLEY_ASSIGN(const SourceTensor source, read(suffix));
  const std::string dtype = info(suffix)->dtype;
  std::vector<float> values(static_cast<size_t>(source.shape[0]) / element_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float_at(source.data, dtype, static_cast<int64_t>(i));
  return values;
}

int64_t Finder::bytes(const std::vector<std::string>& suffixes) const {
  int64_t sum = 0;
  for (const std::string& suffix : suffixes) {
    const std::optional<TensorInfo> found = info(suffix);
    if (found) sum += static_cast<int64_t>(found->bytes) / (site_.count * site_.parts);
  }
  return sum;
}

Result<int32_t> Finder::group_for(const std::string& suffix, int64_t groups) const {
  if (groups == 1) return 0;
  std::string sizes;
  for (const int32_t size : quantisation_.groups) {
    if (groups_of(columns(), size) == groups && size % 16 == 0) return size;
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  return wrong(suffix, "has " + std::to_string(groups) + " groups for " + std::to_string(columns()) +
                           " columns, but config.json's group_size is " + (sizes.empty() ? "missing" : sizes) +
                           "; built are groups of multiples of 16 columns");
}

Error Finder::missing(const std::string& suffix, const std::string& what) const {
  return not_found(files_->origin() + " has no tensor \"" + name(suffix) + "\", " + what +
                   ": the checkpoint is incomplete.");
}
Error Finder::wrong(const std::string& suffix, const std::string& what) const {
  return failed_precondition(files_->origin() + ": tensor \"" + name(suffix) + "\" " + what + ".");
}
Error Finder::unbuilt(const std::string& suffix, const std::string& what) const {
  return unimplemented(files_->origin() + ": tensor \"" + name(suffix) + "\" " + what + ".");
}

Result<std::optional<Codes>> find_codes(std::shared_ptr<const Checkpoint> files, const Quantisation& quantisation,
                                        const CodeSite& site) {
  const Finder finder(std::move(files), quantisation, site);
  if (site.stacked && finder.has("blocks")) return find_fp4_blocks(finder);
  if (finder.has("qweight")) {
    return quantisation.integers == Quantisation::Integers::kAwq ? find_awq(finder) : find_gptq(finder);
  }
  if (const auto packed = finder.info("weight_packed")) {
    return packed->dtype == "U8" ? find_fp4(finder, "weight_packed") : find_packed_int4(finder);
  }
  const std::optional<TensorInfo> weight = finder.info("weight");
  if (!weight) return std::optional<Codes>();
  if (weight->dtype == "F8_E4M3") return find_fp8(finder);
  if (weight->dtype == "U8") return find_fp4(finder, "weight");
  if (!is_plain(weight->dtype)) {
    return finder.unbuilt("weight", "has dtype " + weight->dtype +
                                        ", which is not built; built are F8_E4M3, packed 4-bit codes, BF16, F16, F32");
  }
  for (const char* scale : {"weight_scale_inv", "weight_scale", "scale_inv", "scale"}) {
    if (finder.has(scale)) {
      return finder.wrong(scale, "is there, but the weight that it belongs to is plain " + weight->dtype);
    }
  }
  return std::optional<Codes>();
}

bool has_codes(const Checkpoint& files, const std::string& weight) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return files.has(weight + "_blocks");
  const std::string module = weight.substr(0, weight.size() - kWeight.size());
  return files.has(module + ".weight_packed") || files.has(module + ".qweight");
}

void keep_weights_alone(std::vector<std::string>& names) {
  std::erase_if(names, [](const std::string& name) {
    return std::ranges::any_of(kBeside, [&](const char* suffix) { return name.ends_with(suffix); });
  });
  for (std::string& name : names) {
    for (const auto& [suffix, weight] : kInstead) {
      if (!name.ends_with(suffix)) continue;
      name.replace(name.size() - std::strlen(suffix), std::string::npos, weight);
    }
  }
}

}  // namespace volley::weights
