#include "model/weight_loader.h"

#include <algorithm>
#include <array>

#include "base/math.h"
#include "device/dry_run.h"
#include "weights/coded.h"

namespace volley::model {
namespace {

void append_floats(const weights::SourceTensor& source, int64_t begin, int64_t n, int64_t step,
                   std::vector<float>& out) {
  for (int64_t i = begin; i < begin + n * step; i += step) {
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

std::vector<std::pair<int64_t, int64_t>> ranges_of(const Param::Part& part) {
  if (part.ranges.empty()) return {{part.first, part.rows}};
  return part.ranges;
}

}  // namespace

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

ops::WeightFormat matrix_storage(const Numerics& numerics, std::span<const DType> parts, Param::Codes codes) {
  const ops::WeightFormat& storage = numerics.storage;
  if (storage.is_codes()) {
    if (codes == Param::Codes::kAny) return storage;
    if (codes == Param::Codes::kBytes && !storage.multiplies_codes()) return ops::kFp8Weights;
  }
  if (numerics.activation == DType::kBF16) return DType::kBF16;
  const bool bf16 = std::all_of(parts.begin(), parts.end(), [](DType part) { return part == DType::kBF16; });
  return bf16 ? DType::kBF16 : DType::kF32;
}

std::optional<weights::CodeFormat> coded_as(const weights::Checkpoint& checkpoint, const Param& param) {
  if (!param.is_matrix() && !param.is_stack()) return std::nullopt;
  const auto format = checkpoint.code_format(param.parts[0].name, param.coded_shape(param.parts[0]));
  return format.ok() ? *format : std::nullopt;
}

namespace {

// Whether the outputs that share scales in ops::kFp8Blocks also share them in the checkpoint, and likewise the columns.
bool lies_in_blocks(const weights::CodeFormat& coded, const Param& param) {
  constexpr int64_t kTogether = ops::kFp8Blocks.group_n, kColumns = ops::kFp8Blocks.group_k;
  const bool cut = param.cuts_columns() && (param.columns % kColumns != 0 || param.first_column % kColumns != 0);
  if (coded.group % kColumns != 0 || cut) return false;
  int64_t packed = 0, block = 0;
  const Param::Part* of = nullptr;  // the outputs that share that block
  for (const Param::Part& part : param.parts) {
    if (layout_of(param) == ops::LinearLayout::kGateUp) packed = 0;
    for (const auto& [first, n] : ranges_of(part)) {
      for (int64_t i = 0; i < n; ++i, ++packed) {
        const int64_t own = (first + i * part.step) / coded.block_rows;
        const bool begins = packed % kTogether == 0;
        if (!begins && (own != block || of->name != part.name)) return false;
        block = own;
        of = &part;
      }
    }
  }
  return true;
}

// How the device multiplies a matrix of e4m3 by rows of e4m3; no value where it has no kernel.
std::optional<ops::WeightFormat> fp8_storage(const weights::CodeFormat& coded, const Param& param) {
  if (coded.code != DType::kF8E4M3 || !param.is_matrix() || param.codes == Param::Codes::kNone) return std::nullopt;
  const int64_t outputs = param.rows() / (layout_of(param) == ops::LinearLayout::kGateUp ? 2 : 1);
  if (param.columns % ops::kQuantisedColumns != 0 || outputs % 4 != 0) return std::nullopt;
  if (coded.group == 0) return ops::kFp8Rows;
  return lies_in_blocks(coded, param) ? std::optional(ops::kFp8Blocks) : std::nullopt;
}

}  // namespace

ops::WeightFormat coded_storage(const weights::CodeFormat& coded, const Param& param, const Numerics& numerics,
                                DeviceKind device) {
  const bool bf16 = numerics.activation == DType::kBF16;
  if (numerics.fp8_products && bf16) {
    if (const auto storage = fp8_storage(coded, param)) return *storage;
  }
  if (param.parts[0].codes_too) return bf16 ? DType::kBF16 : DType::kF32;
  // The largest group size of the kernels for which each scale covers whole groups, and a rank's columns are whole
  // groups.
  const bool ends = coded.group > 0 && param.cuts_columns();
  const auto cut = [&](int16_t group) { return param.columns % group != 0 || param.first_column % group != 0; };
  int16_t group = 128;
  while (group > 16 && (coded.group % group != 0 || (ends && cut(group)))) group /= 2;
  const bool halves = coded.halves && device == DeviceKind::kCpu;
  const ops::WeightFormat as_stored = {coded.code, 1, group, coded.zeros, coded.minimums, halves};
  const auto multiplies = param.is_stack() ? ops::experts_multiply_as_stored : ops::multiplies_as_stored;
  // Columns that are no whole groups are refused (check_cut()); whole ones may begin inside a group.
  const bool shifted = ends && param.columns % group == 0 && param.first_column % group != 0;
  if (!coded.scattered && !shifted && multiplies(device, as_stored)) return as_stored;
  return bf16 ? DType::kBF16 : DType::kF32;
}

std::vector<std::string> widened_codes(std::span<const Param> list, const weights::Checkpoint& checkpoint,
                                       const Numerics& numerics, DeviceKind device) {
  std::vector<std::string> sentences;
  for (const Param& param : list) {
    const auto coded = coded_as(checkpoint, param);
    if (!coded) continue;
    const ops::WeightFormat storage = coded_storage(*coded, param, numerics, device);
    if (storage.is_codes()) continue;
    const std::string sentence = coded->name + " are computed as " + ops::format_name(storage);
    if (std::ranges::find(sentences, sentence) == sentences.end()) sentences.push_back(sentence);
  }
  return sentences;
}

namespace {

// Columns of a matrix of codes, widened.
ops::WeightRows transposed_rows(const weights::CodedMatrix& matrix, const Param& param, const Param::Part& part) {
  const int64_t rows = part.rows, columns = param.columns, first = param.first_column + part.first_column;
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(rows * columns));
  std::vector<float> column(static_cast<size_t>(rows));
  for (int64_t c = 0; c < columns; ++c) {
    matrix.widen({first + c, part.first, rows}, column.data());
    for (int64_t r = 0; r < rows; ++r) (*values)[static_cast<size_t>(r * columns + c)] = column[static_cast<size_t>(r)];
  }
  ops::WeightRows result;
  result.rows = rows;
  result.values = [values, columns](int64_t row, float* out) {
    std::copy_n(values->data() + row * columns, columns, out);
  };
  return result;
}

// The part's rows of codes, as pack_linear() and pack_experts() take them. The matrix must outlive the closures.
ops::WeightRows coded_rows(std::shared_ptr<const weights::CodedMatrix> matrix, const Param& param,
                           const Param::Part& part, const ops::WeightFormat& storage) {
  auto rows = std::make_shared<std::vector<int64_t>>();  // rows of the matrix
  for (const auto& [first, n] : ranges_of(part)) {
    for (int64_t i = 0; i < n; ++i) rows->push_back(first + i * part.step);
  }
  ops::WeightRows result;
  result.rows = part.rows;
  const int64_t first = param.first_column, columns = param.columns;
  if (!storage.is_codes()) {
    result.values = [matrix, rows, first, columns](int64_t row, float* values) {
      matrix->widen({(*rows)[row], first, columns}, values);
    };
    return result;
  }
  result.codes = [matrix, rows, first, columns, group = storage.group_k](int64_t row, const ops::CodedRow& out) {
    const auto groups = static_cast<size_t>(matrix->groups());
    if (first == 0 && matrix->format().group == group && out.scales.size() == groups) {
      matrix->read({(*rows)[row], first, columns}, out.codes.data(), out.scales.data(), out.zeros.data(),
                   out.minimums.data());
      return;
    }
    std::vector<float> scales(groups), minimums(out.minimums.empty() ? 0 : groups);
    std::vector<uint8_t> zeros(out.zeros.empty() ? 0 : groups);
    matrix->read({(*rows)[row], first, columns}, out.codes.data(), scales.data(), zeros.data(), minimums.data());
    // A scale may cover several groups of the kernels'.
    const int64_t covers = matrix->format().group;
    for (size_t g = 0; g < out.scales.size(); ++g) {
      const int64_t column = first + static_cast<int64_t>(g) * group;
      const auto from = static_cast<size_t>(covers > 0 ? column / covers : 0);
      out.scales[g] = scales[from];
      if (!out.zeros.empty()) out.zeros[g] = zeros[from];
      if (!out.minimums.empty()) out.minimums[g] = minimums[from];
    }
  };
  return result;
}

ops::WeightFormat storage_in(const weights::Checkpoint& checkpoint, const Param& param, const Numerics& numerics,
                             DeviceKind device) {
  if (const auto coded = coded_as(checkpoint, param)) return coded_storage(*coded, param, numerics, device);
  std::vector<DType> parts;
  for (const Param::Part& part : param.parts) parts.push_back(checkpoint.dtype_of(part.name));
  // Not built: experts whose input rows are codes; on CUDA, 8-bit weights with plain input rows, except for experts.
  if (param.is_experts() && numerics.storage.multiplies_codes() && param.codes == Param::Codes::kAny) {
    return ops::kFp8Weights;
  }
  const bool rows_stay = device == DeviceKind::kCuda && param.codes == Param::Codes::kBytes;
  return matrix_storage(numerics, parts, rows_stay ? Param::Codes::kNone : param.codes);
}

}  // namespace

namespace {

// The checkpoint's code format of a look-up table, if the device can widen single rows of it.
std::optional<weights::CodeFormat> coded_table(const weights::Checkpoint& checkpoint, const Param& param,
                                               DeviceKind device) {
  if (param.codes == Param::Codes::kNone) return std::nullopt;
  const auto format = checkpoint.code_format(param.parts[0].name, param.stored_shape(param.parts[0]));
  if (!format.ok() || !*format || device == DeviceKind::kCpu) return format.ok() ? *format : std::nullopt;
  const weights::CodeFormat& coded = **format;
  const bool integers = coded.code == DType::kI8 || coded.code == DType::kI6 || coded.code == DType::kI4;
  const bool groups = coded.group > 0 && param.columns % coded.group == 0 && !coded.scattered && !coded.zeros;
  return integers && groups ? *format : std::nullopt;
}

// Whether the checkpoint has codes for a table that kernels read as values: it is then widened to fp32.
bool is_widened_table(const weights::Checkpoint& checkpoint, const Param& param) {
  if (!param.is_value_table()) return false;
  const auto format = checkpoint.code_format(param.parts[0].name, param.stored_shape(param.parts[0]));
  return format.ok() && format->has_value();
}

// Where the parts of a table of codes lie in its memory on CUDA.
struct CodeTableBytes {
  CodeTableBytes(const Param& param, const weights::CodeFormat& format) {
    constexpr int64_t kAlign = 16;
    const int64_t each = param.elements() / format.group * static_cast<int64_t>(sizeof(float));
    scales = round_up(param.elements(), kAlign);
    minimums = scales + each;
    all = minimums + (format.minimums ? each : 0);
  }
  int64_t scales, minimums, all;
};

// A rank's columns must be whole groups that share a scale; else the rank's codes would not be the whole model's.
Status check_cut(const Param& param, const ops::WeightFormat& storage) {
  if (!param.cuts_columns() || storage.group_k == 0 || param.columns % storage.group_k == 0) return {};
  return unimplemented("--tensor-parallel-size cuts the columns of \"" + param.parts[0].name + "\" after each " +
                       std::to_string(param.columns) + ": that must be a multiple of " +
                       std::to_string(storage.group_k) + ", as so many share a scale in " + ops::format_name(storage) +
                       (param.is_experts() ? ". Use fewer ranks, or --enable-expert-parallel, which cuts no expert."
                                           : ". Use fewer ranks."));
}

}  // namespace

int64_t WeightBytes::total() const {
  int64_t sum = rest;
  for (const auto& [dtype, bytes] : matrices) sum += bytes;
  return sum;
}

void WeightBytes::add(const WeightBytes& more) {
  for (const auto& [dtype, bytes] : more.matrices) matrices[dtype] += bytes;
  rest += more.rest;
}

WeightBytes weight_bytes(std::span<const Param> list, const Numerics& numerics, const weights::Checkpoint& checkpoint,
                         DeviceKind device) {
  WeightBytes bytes;
  for (const Param& param : list) {
    if (param.is_matrix() || param.is_stack()) {
      const int64_t matrices = param.is_stack() ? param.experts() : 1;
      const ops::WeightFormat storage = storage_in(checkpoint, param, numerics, device);
      bytes.matrices[storage.code] +=
          matrices * ops::packed_bytes(device, param.rows() / matrices, param.columns, storage, layout_of(param));
    } else if (param.kind == Param::Kind::kVector || param.kind == Param::Kind::kIndex) {
      static_assert(sizeof(float) == sizeof(int32_t));
      bytes.rest += param.elements() * static_cast<int64_t>(sizeof(float));
    } else if (const auto coded = coded_table(checkpoint, param, device)) {
      if (device != DeviceKind::kCpu) {
        bytes.rest += CodeTableBytes(param, *coded).all;
      } else if (checkpoint.takes_memory()) {
        bytes.rest += coded->bytes;
      }
    } else if (is_widened_table(checkpoint, param)) {
      bytes.rest += param.elements() * static_cast<int64_t>(sizeof(float));
    } else if (device != DeviceKind::kCpu || checkpoint.takes_memory()) {
      const DType stored = checkpoint.dtype_of(param.parts[0].name);
      bytes.rest += param.elements() * static_cast<int64_t>(dtype_size(stored));
    }
  }
  return bytes;
}

WeightLoader::WeightLoader(Device& device, const weights::Checkpoint& checkpoint, const Numerics& numerics,
                           const std::vector<Param>& list)
    : device_(device), checkpoint_(checkpoint), numerics_(numerics) {
  for (const Param& param : list) VOLLEY_CHECK(params_.emplace(param.role, &param).second);
}

ops::WeightFormat WeightLoader::storage_of(const Param& param) const {
  return storage_in(checkpoint_, param, numerics_, device_.kind());
}

const Param& WeightLoader::param(const std::string& role) const {
  const auto found = params_.find(role);
  VOLLEY_CHECK_MSG(found != params_.end(), role);
  return *found->second;
}

Result<Vector> WeightLoader::vector(const std::string& role) {
  const Param& param = this->param(role);
  Vector result;
  VOLLEY_ASSIGN(result.buffer, device_.allocate(static_cast<size_t>(param.rows()) * sizeof(float)));
  result.view = result.buffer.view(DType::kF32, {param.rows()});
  if (dry()) return result;
  std::vector<float> values;
  values.reserve(static_cast<size_t>(param.rows()));
  for (const Param::Part& part : param.parts) {
    VOLLEY_ASSIGN(const weights::SourceTensor source, checkpoint_.get(part.name, param.stored_shape(part)));
    for (const auto& [first, n] : ranges_of(part)) append_floats(source, first, n, part.step, values);
  }
  if (param.plus != 0 || param.times != 1) {
    std::ranges::for_each(values, [&](float& value) { value = (value + param.plus) * param.times; });
  }
  device_.upload(result.view.data, values.data(), values.size() * sizeof(float));
  return result;
}

Status WeightLoader::optional_vector(const std::string& role, Vector& out) {
  if (!has(role)) return {};
  VOLLEY_ASSIGN(out, vector(role));
  return {};
}

Result<WeightLoader::Sources> WeightLoader::sources(const Param& param) const {
  Sources sources;
  const auto coded = coded_as(checkpoint_, param);
  const ops::WeightFormat storage = storage_of(param);
  if (!coded || coded->group > 0) VOLLEY_RETURN_IF_ERROR(check_cut(param, storage));
  const Param::Part* before = nullptr;
  for (const Param::Part& part : param.parts) {
    if (dry()) {
      sources.rows.push_back({nullptr, checkpoint_.dtype_of(part.name), part.rows});
      if (coded && storage.is_codes()) sources.rows.back().codes = [](int64_t, const ops::CodedRow&) {};
      continue;
    }
    if (coded) {
      VOLLEY_ASSIGN(auto matrix, checkpoint_.coded(part.name, param.coded_shape(part)));
      sources.tensors.insert(sources.tensors.end(), matrix->sources().begin(), matrix->sources().end());
      sources.rows.push_back(part.codes_too ? transposed_rows(*matrix, param, part)
                                            : coded_rows(std::move(matrix), param, part, storage));
      continue;
    }
    // Gate and up may be parts of one tensor.
    if (before == nullptr || before->name != part.name) {
      VOLLEY_ASSIGN(sources.tensors.emplace_back(), checkpoint_.get(part.name, param.stored_shape(part)));
    }
    before = &part;
    const weights::SourceTensor& tensor = sources.tensors.back();
    const auto size = static_cast<int64_t>(dtype_size(tensor.dtype)), width = Param::width_of(tensor.shape);
    if (part.transposed) {
      const std::byte* begin = tensor.data + (part.first + (param.first_column + part.first_column) * width) * size;
      sources.rows.push_back({begin, tensor.dtype, part.rows, part.step, width});
      continue;
    }
    for (const auto& [first, n] : ranges_of(part)) {
      const std::byte* begin = tensor.data + (first * width + param.first_column) * size;
      sources.rows.push_back({begin, tensor.dtype, n, part.step * width});
    }
  }
  return sources;
}

void WeightLoader::packed(const Sources& sources, const Buffer& weight) {
  for (const weights::SourceTensor& tensor : sources.tensors) checkpoint_.done_with(tensor);
  packed_bytes_ += static_cast<int64_t>(weight.bytes());
  if (on_packed) on_packed(packed_bytes_);
}

Result<ops::LinearWeight> WeightLoader::linear(const std::string& role) {
  const Param& param = this->param(role);
  VOLLEY_CHECK(param.is_matrix());
  VOLLEY_ASSIGN(const Sources sources, this->sources(param));
  VOLLEY_ASSIGN(ops::LinearWeight weight,
                ops::pack_linear(device_, sources.rows, param.columns, storage_of(param), layout_of(param)));
  packed(sources, weight.packed);
  return weight;
}

Result<ops::ExpertWeights> WeightLoader::experts(const std::string& role) {
  const Param& param = this->param(role);
  VOLLEY_CHECK(param.is_stack());
  VOLLEY_ASSIGN(const Sources sources, this->sources(param));
  VOLLEY_ASSIGN(ops::ExpertWeights weight, ops::pack_experts(device_, sources.rows, param.experts(), param.columns,
                                                             storage_of(param), layout_of(param)));
  packed(sources, weight.packed);
  return weight;
}

// As a kernel takes it, whatever the number of a code's bits.
Result<Table> WeightLoader::code_table(const Param& param, const weights::CodeFormat& format) {
  const int64_t rows = param.rows(), columns = param.columns, groups = columns / format.group;
  const CodeTableBytes bytes(param, format);
  Table table;
  VOLLEY_ASSIGN(table.buffer, device_.allocate(static_cast<size_t>(bytes.all)));
  auto* memory = static_cast<char*>(table.buffer.data());
  table.code_table = ops::CodeTable{.codes = TensorView(memory, DType::kI8, {rows, columns}),
                                    .scales = TensorView(memory + bytes.scales, DType::kF32, {rows, groups}),
                                    .minimums = TensorView()};
  if (format.minimums) table.code_table->minimums = TensorView(memory + bytes.minimums, DType::kF32, {rows, groups});
  if (dry()) return table;
  VOLLEY_ASSIGN(const auto matrix, checkpoint_.coded(param.parts[0].name, param.stored_shape(param.parts[0])));
  std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
  std::vector<float> scales(static_cast<size_t>(rows * groups)), minimums(format.minimums ? scales.size() : 0);
  for (int64_t row = 0; row < rows; ++row) {
    matrix->read({row, 0, columns}, &codes[row * columns], &scales[row * groups], nullptr,
                 format.minimums ? &minimums[row * groups] : nullptr);
  }
  // From what a code counts (weights/coded.h).
  const int zero = format.code == DType::kI6 ? 32 : format.code == DType::kI4 && !format.minimums ? 8 : 0;
  for (uint8_t& code : codes) code = static_cast<uint8_t>(code - zero);
  device_.upload(memory, codes.data(), codes.size());
  device_.upload(memory + bytes.scales, scales.data(), scales.size() * sizeof(float));
  if (format.minimums) device_.upload(memory + bytes.minimums, minimums.data(), minimums.size() * sizeof(float));
  for (const weights::SourceTensor& source : matrix->sources()) checkpoint_.done_with(source);
  return table;
}

Result<Table> WeightLoader::widened_table(const Param& param) {
  const int64_t rows = param.rows(), columns = param.columns;
  Table table;
  VOLLEY_ASSIGN(table.buffer, device_.allocate(static_cast<size_t>(param.elements()) * sizeof(float)));
  table.view = table.buffer.view(DType::kF32, {rows, columns});
  if (dry()) return table;
  VOLLEY_ASSIGN(const auto matrix, checkpoint_.coded(param.parts[0].name, param.stored_shape(param.parts[0])));
  std::vector<float> values(static_cast<size_t>(param.elements()));
  for (int64_t row = 0; row < rows; ++row) matrix->widen({row, 0, columns}, &values[row * columns]);
  device_.upload(table.view.data, values.data(), values.size() * sizeof(float));
  for (const weights::SourceTensor& source : matrix->sources()) checkpoint_.done_with(source);
  return table;
}

Result<Table> WeightLoader::table(const std::string& role) {
  const Param& param = this->param(role);
  if (is_widened_table(checkpoint_, param)) return widened_table(param);
  const std::array<int64_t, 2> shape = {param.rows(), param.columns};
  Table table;
  const auto coded = coded_table(checkpoint_, param, device_.kind());
  if (coded && device_.kind() != DeviceKind::kCpu) return code_table(param, *coded);
  if (dry()) {
    table.view = TensorView(no_memory(), checkpoint_.dtype_of(param.parts[0].name), {shape[0], shape[1]});
  } else if (coded) {
    VOLLEY_ASSIGN(table.codes, checkpoint_.coded(param.parts[0].name, shape));
  } else {
    VOLLEY_ASSIGN(table.source, checkpoint_.get(param.parts[0].name, shape));
    table.view = TensorView(const_cast<std::byte*>(table.source.data), table.source.dtype, {shape[0], shape[1]});
  }
  if (device_.kind() == DeviceKind::kCpu) return table;
  const auto bytes = static_cast<size_t>(table.view.bytes());
  VOLLEY_ASSIGN(table.buffer, device_.allocate(bytes));
  device_.upload(table.buffer.data(), table.source.data, bytes);
  table.view.data = table.buffer.data();
  table.source = {};
  return table;
}

}  // namespace volley::model
