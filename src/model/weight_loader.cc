#include "model/weight_loader.h"

#include <algorithm>
#include <array>

namespace volley::model {

Numerics resolve_numerics(ComputeType requested, DType checkpoint) {
  const bool bf16 = checkpoint == DType::kBF16;
  switch (requested) {
    case ComputeType::kBFloat16:
      return {DType::kBF16, DType::kBF16};
    case ComputeType::kFloat32:
      return {DType::kF32, bf16 ? DType::kBF16 : DType::kF32};
    case ComputeType::kAuto:
      break;
  }
  return bf16 ? Numerics{DType::kBF16, DType::kBF16} : Numerics{DType::kF32, DType::kF32};
}

DType matrix_storage(const Numerics& numerics, std::span<const DType> parts) {
  if (numerics.storage == DType::kF8E4M3) return DType::kF8E4M3;
  if (numerics.activation == DType::kBF16) return DType::kBF16;
  const bool bf16 = std::all_of(parts.begin(), parts.end(), [](DType part) { return part == DType::kBF16; });
  return bf16 ? DType::kBF16 : DType::kF32;
}

WeightLoader::WeightLoader(Device& device, const weights::Checkpoint& checkpoint, const Numerics& numerics,
                           std::vector<std::string> prefixes)
    : device_(device), checkpoint_(checkpoint), numerics_(numerics), prefixes_(std::move(prefixes)) {
  VOLLEY_CHECK(!prefixes_.empty());
}

std::string WeightLoader::full_name(const std::string& name) const {
  for (const std::string& prefix : prefixes_) {
    if (checkpoint_.has(prefix + name)) return prefix + name;
  }
  return prefixes_.front() + name;  // get() will say that it is missing, by the usual name
}

Result<Vector> WeightLoader::vector(const std::string& name, int64_t n) {
  return vectors({name}, n);
}

Result<Vector> WeightLoader::vectors(const std::vector<std::string>& names, int64_t n) {
  const std::array<int64_t, 1> shape = {n};
  const int64_t count = static_cast<int64_t>(names.size()) * n;
  Vector result;
  VOLLEY_ASSIGN(result.buffer, device_.allocate(static_cast<size_t>(count) * sizeof(float)));
  result.view = result.buffer.view(DType::kF32, {count});
  std::vector<float> out;
  out.reserve(count);
  for (const std::string& name : names) {
    VOLLEY_ASSIGN(const weights::SourceTensor source, checkpoint_.get(full_name(name), shape));
    for (int64_t i = 0; i < n; ++i) {
      switch (source.dtype) {
        case DType::kBF16:
          out.push_back(to_float(reinterpret_cast<const BFloat16*>(source.data)[i]));
          break;
        case DType::kF16:
          out.push_back(to_float(reinterpret_cast<const Float16*>(source.data)[i]));
          break;
        default:
          out.push_back(reinterpret_cast<const float*>(source.data)[i]);
          break;
      }
    }
  }
  device_.upload(result.view.data, out.data(), out.size() * sizeof(float));
  return result;
}

Result<ops::LinearWeight> WeightLoader::linear(const std::vector<Matrix>& matrices, int64_t k,
                                               ops::LinearLayout layout) {
  std::vector<weights::SourceTensor> sources;
  std::vector<ops::WeightRows> parts;
  std::vector<DType> dtypes;
  for (const Matrix& matrix : matrices) {
    const std::array<int64_t, 2> shape = {matrix.rows, k};
    VOLLEY_ASSIGN(sources.emplace_back(), checkpoint_.get(full_name(matrix.name), shape));
    parts.push_back({sources.back().data, sources.back().dtype, matrix.rows});
    dtypes.push_back(sources.back().dtype);
  }
  VOLLEY_ASSIGN(ops::LinearWeight weight,
                ops::pack_linear(device_, parts, k, matrix_storage(numerics_, dtypes), layout));
  for (const auto& source : sources) checkpoint_.done_with(source);
  packed_bytes_ += static_cast<int64_t>(weight.packed.bytes());
  if (on_packed) on_packed(packed_bytes_);
  return weight;
}

Result<Table> WeightLoader::table(const std::string& name, int64_t rows, int64_t k) {
  const std::array<int64_t, 2> shape = {rows, k};
  Table table;
  VOLLEY_ASSIGN(table.source, checkpoint_.get(full_name(name), shape));
  table.view = TensorView(const_cast<std::byte*>(table.source.data), table.source.dtype, {rows, k});
  if (device_.kind() == DeviceKind::kCpu) return table;
  const auto bytes = static_cast<size_t>(table.view.bytes());
  VOLLEY_ASSIGN(table.buffer, device_.allocate(bytes));
  device_.upload(table.buffer.data(), table.source.data, bytes);
  table.view.data = table.buffer.data();
  table.source = {};
  return table;
}

}  // namespace volley::model
