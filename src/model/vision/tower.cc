#include "model/vision/tower.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "base/math.h"
#include "device/dry_run.h"
#include "ops/rope_angles/rope_angles.h"
#include "ops/vision/vision.h"

namespace volley::model {
namespace {

using Stage = TowerUnits::Stage;

// Rows of a unit. On a GPU so many that its products fill it; on the CPU so few that a unit of a large picture takes
// some tenths of a second.
constexpr int64_t kCpuRows = 256, kGpuRows = 4096;
// Positions of a page, of which K and V have one, are a multiple of it.
constexpr int64_t kPagePositions = 64;

void add_pair(std::vector<Param>& list, const std::string& role, const std::string& name, int64_t rows, int64_t columns,
              std::vector<int64_t> stored = {}) {
  const bool norm = columns == 0;
  list.push_back({role,
                  norm ? Param::Kind::kVector : Param::Kind::kMatrix,
                  columns,
                  {{name + ".weight", rows, Split::kNone, {}, std::move(stored)}},
                  false,
                  Param::Codes::kNone});
  list.push_back({role + "_bias", Param::Kind::kVector, 0, {{name + ".bias", rows}}});
}

std::string merger_role(size_t index) {
  return "visual.merger." + std::to_string(index) + ".";
}
std::string layer_role(size_t index) {
  return "visual.layers." + std::to_string(index) + ".";
}

// Elements of a head in the kernels of attention: the CPU's take any multiple of 16, a GPU's fast ones these sizes.
int32_t room_of_head(DeviceKind device, DType dtype, int32_t dim) {
  const int32_t room = static_cast<int32_t>(round_up(dim, 16));
  if (device == DeviceKind::kCpu || dtype != DType::kBF16) return room;
  return room <= 64 ? 64 : room <= 128 ? 128 : 256;
}

}  // namespace

TowerUnits::TowerUnits(const TowerSpec& spec, int64_t patches, int64_t rows_of_unit)
    : spec_(spec), patches_(patches), rows_(rows_of_unit) {
  pieces_ = static_cast<int32_t>(divide_up(patches, rows_of_unit));
  order_.push_back({Stage::kEmbed});
  for (int32_t i = 0; i < spec.layers; ++i) {
    order_.push_back({Stage::kProject, i});
    order_.push_back({Stage::kAttend, i});
    const auto deep = std::ranges::find(spec.deep, i);
    if (deep != spec.deep.end()) order_.push_back({Stage::kMerge, 1 + static_cast<int32_t>(deep - spec.deep.begin())});
  }
  order_.push_back({Stage::kMerge, 0});
  stages_ = static_cast<int32_t>(order_.size());
}

TowerUnits::Unit TowerUnits::operator[](int32_t unit) const {
  Unit found = order_[static_cast<size_t>(unit / pieces_)];
  found.first = unit % pieces_ * rows_;
  found.rows = std::min(rows_, patches_ - found.first);
  return found;
}

double TowerUnits::macs(int32_t unit) const {
  const Unit u = (*this)[unit];
  const auto hidden = static_cast<double>(spec_.hidden), rows = static_cast<double>(u.rows);
  switch (u.stage) {
    case Stage::kEmbed:
      return rows * hidden * static_cast<double>(spec_.patch_values());
    case Stage::kProject:
      return rows * hidden * 3 * hidden;
    case Stage::kAttend:
      return rows * hidden * (hidden + 2 * static_cast<double>(spec_.inner) + 2 * static_cast<double>(patches_));
    case Stage::kMerge:
      break;
  }
  const auto width = static_cast<double>(spec_.merger_width());
  return rows / spec_.merged() * width * (width + static_cast<double>(spec_.out));
}

std::vector<Param> tower_params(const TowerSpec& spec) {
  std::vector<Param> list;
  const int64_t hidden = spec.hidden, width = spec.merger_width();
  const int64_t patch = spec.rules.patch_size, places = int64_t{spec.side} * spec.side;
  add_pair(list, "visual.patch", "visual.patch_embed.proj", hidden, spec.patch_values(),
           {hidden, 3, spec.frames, patch, patch});
  list.push_back({"visual.places",
                  Param::Kind::kVector,
                  0,
                  {{"visual.pos_embed.weight", places * hidden, Split::kNone, {}, {places, hidden}}}});
  for (size_t i = 0; i < static_cast<size_t>(spec.layers); ++i) {
    const std::string role = layer_role(i), name = "visual.blocks." + std::to_string(i) + ".";
    add_pair(list, role + "norm1", name + "norm1", hidden, 0);
    add_pair(list, role + "qkv", name + "attn.qkv", 3 * hidden, hidden);
    add_pair(list, role + "proj", name + "attn.proj", hidden, hidden);
    add_pair(list, role + "norm2", name + "norm2", hidden, 0);
    add_pair(list, role + "fc1", name + "mlp.linear_fc1", spec.inner, hidden);
    add_pair(list, role + "fc2", name + "mlp.linear_fc2", hidden, spec.inner);
  }
  for (size_t i = 0; i < static_cast<size_t>(spec.kinds()); ++i) {
    const std::string role = merger_role(i);
    const std::string name = i == 0 ? "visual.merger." : "visual.deepstack_merger_list." + std::to_string(i - 1) + ".";
    add_pair(list, role + "norm", name + "norm", i == 0 ? hidden : width, 0);
    add_pair(list, role + "fc1", name + "linear_fc1", width, width);
    add_pair(list, role + "fc2", name + "linear_fc2", spec.out, width);
  }
  return list;
}

std::vector<Param> params_with_tower(const Decoder& spec) {
  std::vector<Param> list = params(spec);
  if (spec.tower) append(list, tower_params(*spec.tower));
  return list;
}

Result<std::unique_ptr<Tower>> Tower::load(WeightLoader& loader, const TowerSpec& spec, const Numerics& numerics) {
  std::unique_ptr<Tower> tower(new Tower);
  tower->spec_ = spec;
  tower->numerics_ = numerics;
  const DeviceKind device = loader.device().kind();
  const DType dtype = numerics.activation;
  tower->head_room_ = room_of_head(device, dtype, spec.head_dim());
  const GpuInfo gpu = device == DeviceKind::kCpu ? GpuInfo() : loader.device().stream().gpu();
  VOLLEY_ASSIGN(tower->numerics_.attention,
                ops::resolve_attention_backend(device, gpu, ops::AttentionBackend::kAuto, dtype, tower->head_room_));
  const auto norm = [&](const std::string& role, Norm& to) -> Status {
    VOLLEY_ASSIGN(to.weight, loader.vector(role));
    VOLLEY_ASSIGN(to.bias, loader.vector(role + "_bias"));
    return {};
  };
  const auto product = [&](const std::string& role, Product& to) -> Status {
    VOLLEY_ASSIGN(to.weight, loader.linear(role));
    VOLLEY_ASSIGN(to.bias, loader.vector(role + "_bias"));
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(product("visual.patch", tower->patch_));
  VOLLEY_ASSIGN(tower->places_, loader.vector("visual.places"));
  for (size_t i = 0; i < static_cast<size_t>(spec.layers); ++i) {
    Layer& layer = tower->layers_.emplace_back();
    const std::string role = layer_role(i);
    VOLLEY_RETURN_IF_ERROR(norm(role + "norm1", layer.norm1));
    VOLLEY_RETURN_IF_ERROR(norm(role + "norm2", layer.norm2));
    VOLLEY_RETURN_IF_ERROR(product(role + "qkv", layer.qkv));
    VOLLEY_RETURN_IF_ERROR(product(role + "proj", layer.proj));
    VOLLEY_RETURN_IF_ERROR(product(role + "fc1", layer.fc1));
    VOLLEY_RETURN_IF_ERROR(product(role + "fc2", layer.fc2));
  }
  for (size_t i = 0; i < static_cast<size_t>(spec.kinds()); ++i) {
    Merger& merger = tower->mergers_.emplace_back();
    merger.joins_first = i > 0;
    VOLLEY_RETURN_IF_ERROR(norm(merger_role(i) + "norm", merger.norm));
    VOLLEY_RETURN_IF_ERROR(product(merger_role(i) + "fc1", merger.fc1));
    VOLLEY_RETURN_IF_ERROR(product(merger_role(i) + "fc2", merger.fc2));
  }
  return tower;
}

int64_t TowerPass::rows_of_unit(DeviceKind device) {
  return device == DeviceKind::kCpu ? kCpuRows : kGpuRows;
}

Result<std::unique_ptr<TowerPass>> TowerPass::create(Device& device, const Tower& tower) {
  std::unique_ptr<TowerPass> pass(new TowerPass(device, tower));
  VOLLEY_RETURN_IF_ERROR(pass->allocate());
  return pass;
}

Status TowerPass::allocate() {
  const TowerSpec& spec = tower_.spec_;
  const int64_t most = spec.most_patches(), pairs = tower_.head_room_ / 2, size = spec.rules.patch_size;
  const auto word = static_cast<int64_t>(sizeof(int32_t)), element = static_cast<int64_t>(dtype_size(activation()));
  int64_t end = round_up(most * size * size * 3, kPagePositions);
  const auto place = [&](int64_t& at, int64_t bytes) {
    at = std::exchange(end, round_up(end + bytes, kPagePositions));
  };
  place(at_.zeros, most * word);
  place(at_.counting, most * word);
  place(at_.ends, most * word);
  place(at_.axes, most * ops::kRopeAxes * word);
  place(at_.pair_axes, pairs * word);
  place(at_.page, word);
  place(at_.segments, divide_up(most, rows_of_unit(device_.kind())) * static_cast<int64_t>(sizeof(ops::RowSegment)));
  at_.all = end;
  const int64_t edge = most / spec.rules.merge_size;  // of the longest picture
  const int64_t heads = int64_t{spec.heads} * tower_.head_room_, tokens = most / spec.merged();
  const auto take = [&](int64_t bytes) { return device_.allocate(static_cast<size_t>(bytes)); };
  VOLLEY_ASSIGN(input_, take(end));
  VOLLEY_ASSIGN(x_, take(most * spec.hidden * word));
  VOLLEY_ASSIGN(q_, take(most * heads * element));
  VOLLEY_ASSIGN(kv_, take(2 * round_up(most, kPagePositions) * heads * element));
  VOLLEY_ASSIGN(out_, take(spec.kinds() * tokens * spec.out * word));
  VOLLEY_ASSIGN(edge_angles_, take(2 * edge * pairs * word));
  VOLLEY_ASSIGN(angles_, take(2 * most * pairs * word));
  VOLLEY_ASSIGN(host_input_, device_.allocate_host(static_cast<size_t>(end)));
  VOLLEY_ASSIGN(host_out_, device_.allocate_host(out_.bytes()));
  uploaded_ = device_.make_fence();
  set_largest();
  VOLLEY_ASSIGN(Buffer plans, take(measure_scratch(device_.stream(), [&](Arena& memory) { plan(memory); })));
  plan_memory_.emplace(std::move(plans));
  units_.reset();  // no picture has begun
  if (device_.stream().dry()) return {};
  // A pair turns by its patch's row, or by its column; pairs that only fill the room of a head never turn.
  const int64_t quarter = spec.head_dim() / 4;
  RopeSpec rope;
  rope.dim = spec.head_dim() / 2;
  rope.theta = spec.theta;
  const RopeValues values = rope_values(rope, edge);
  std::vector<float> angles(static_cast<size_t>(2 * edge * pairs));
  for (int64_t i = 0; i < edge; ++i) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const bool turns = pair < 2 * quarter;
      const auto from = static_cast<size_t>(i * quarter + pair % quarter), to = static_cast<size_t>(i * pairs + pair);
      angles[to] = turns ? values.cos[from] : 1.0f;
      angles[to + static_cast<size_t>(edge * pairs)] = turns ? values.sin[from] : 0.0f;
    }
  }
  device_.upload(edge_angles_.data(), angles.data(), angles.size() * sizeof(float));
  auto* host = static_cast<std::byte*>(host_input_.data());
  auto* counting = reinterpret_cast<int32_t*>(host + at_.counting);
  for (int64_t i = 0; i < most; ++i) counting[i] = static_cast<int32_t>(i);
  auto* pair_axes = reinterpret_cast<int32_t*>(host + at_.pair_axes);
  for (int64_t pair = 0; pair < pairs; ++pair) pair_axes[pair] = pair < quarter ? 1 : pair < 2 * quarter ? 2 : 0;
  return {};
}

void TowerPass::begin(const PictureView& picture) {
  const TowerSpec& spec = tower_.spec_;
  const int32_t side = spec.rules.token_side(), size = spec.rules.patch_size;
  VOLLEY_CHECK(picture.width > 0 && picture.height > 0 && picture.width % side == 0 && picture.height % side == 0);
  VOLLEY_CHECK_EQ(std::ssize(picture.rgb), int64_t{picture.width} * picture.height * 3);
  grid_ = {picture.height / size, picture.width / size, spec.rules.merge_size};
  set_rows(grid_.patches());
  pieces_used_ = 0;
  taken_.reset();
  // The system takes milliseconds to make memory of megabytes. A thread does that beside the tower's work, if there is
  // one to be had.
  const auto values = static_cast<size_t>(spec.kinds() * (grid_.patches() / spec.merged()) * spec.out);
  values_ = std::async(std::launch::async | std::launch::deferred,
                       [values] { return std::make_shared<std::vector<float>>(values); });
  uploaded_->wait();
  upload(picture);
  uploaded_->set();
  plan(*plan_memory_);
}

void TowerPass::plan(Arena& memory) {
  const int64_t patches = grid_.patches(), unit = rows_of_unit(device_.kind());
  const ops::HeadShape shape = {.heads = tower_.spec_.heads,
                                .kv_heads = tower_.spec_.heads,
                                .head_dim = tower_.head_room_,
                                .dtype = activation(),
                                .backend = tower_.numerics_.attention,
                                .whole = true};
  memory.release(0);
  plans_.clear();
  for (int64_t first = 0; first < patches; first += unit) {
    const ops::Rows rows = rows_of(first, std::min(unit, patches - first));
    plans_.push_back(ops::plan_attention(device_.stream(), rows, rows.views[ops::kWholeView], shape, memory));
  }
}

void TowerPass::set_rows(int64_t patches) {
  VOLLEY_CHECK(patches <= tower_.spec_.most_patches());
  units_.emplace(tower_.spec_, patches, rows_of_unit(device_.kind()));
  next_ = 0;
}

void TowerPass::upload(const PictureView& picture) {
  auto* host = static_cast<std::byte*>(host_input_.data());
  std::memcpy(host, picture.rgb.data(), picture.rgb.size());
  const int64_t patches = grid_.patches(), unit = rows_of_unit(device_.kind());
  std::fill_n(reinterpret_cast<int32_t*>(host + at_.ends), patches, static_cast<int32_t>(patches));
  auto* axes = reinterpret_cast<int32_t*>(host + at_.axes);
  for (int64_t i = 0; i < patches; ++i) {
    const ops::PatchPlace place = ops::place_of(grid_, i);
    axes[i * ops::kRopeAxes + 1] = place.row;
    axes[i * ops::kRopeAxes + 2] = place.column;
  }
  auto* segments = reinterpret_cast<ops::RowSegment*>(host + at_.segments);
  for (int64_t first = 0; first < patches; first += unit) {
    segments[first / unit] = {0, static_cast<int32_t>(std::min(unit, patches - first)), 0};
  }
  auto* device = static_cast<std::byte*>(input_.data());
  device_.enqueue_upload(device, host, picture.rgb.size());
  device_.enqueue_upload(device + at_.zeros, host + at_.zeros, static_cast<size_t>(at_.all - at_.zeros));
}

void TowerPass::run(int32_t begin, int32_t end, Arena& scratch) {
  VOLLEY_CHECK(units_ && begin == next_ && begin < end && end <= units_->count());
  if (pieces_used_ > 0) pieces_[pieces_used_ - 1].end->wait();
  if (pieces_used_ == pieces_.size()) pieces_.push_back({device_.make_fence(), device_.make_fence()});
  const Piece& piece = pieces_[pieces_used_++];
  piece.begin->set();
  for (; next_ < end; ++next_) run_unit((*units_)[next_], scratch);
  const int64_t tokens = grid_.patches() / tower_.spec_.merged();
  const auto values = static_cast<size_t>(tower_.spec_.kinds() * tokens * tower_.spec_.out);
  if (is_complete()) device_.enqueue_download(host_out_.data(), out_.data(), values * sizeof(float));
  piece.end->set();
}

TowerPass::Vectors TowerPass::take() {
  VOLLEY_CHECK(is_complete());
  Vectors taken = {values_.get()};
  pieces_[pieces_used_ - 1].end->wait();
  for (size_t i = 0; i < pieces_used_; ++i) taken.seconds += pieces_[i].end->seconds_since(*pieces_[i].begin);
  std::memcpy(taken.values->data(), host_out_.data(), taken.values->size() * sizeof(float));
  taken_ = taken.values;
  units_.reset();
  return taken;
}

const float* TowerPass::on_device(std::span<const float> values) const {
  const auto taken = taken_.lock();  // while it lives nothing else is at its address
  if (taken == nullptr) return nullptr;
  const std::less_equal<> before;
  if (!before(taken->data(), values.data())) return nullptr;
  if (!before(values.data() + values.size(), taken->data() + taken->size())) return nullptr;
  return static_cast<const float*>(out_.data()) + (values.data() - taken->data());
}

void TowerPass::set_largest() {
  const auto merge = tower_.spec_.rules.merge_size;
  grid_ = {merge, static_cast<int32_t>(tower_.spec_.most_patches() / merge / merge * merge), merge};
  set_rows(grid_.patches());
}

// One unit of each stage: all others take as much or less.
void TowerPass::run_dry(Arena& scratch) {
  set_largest();
  plan(*plan_memory_);
  for (int32_t unit = 0; unit < units_->count(); ++unit) run_unit((*units_)[unit], scratch);
  units_.reset();
}

void TowerPass::run_unit(const TowerUnits::Unit& unit, Arena& scratch) {
  const ArenaScope scope(scratch);
  const auto index = static_cast<size_t>(unit.index);
  switch (unit.stage) {
    case Stage::kEmbed:
      return embed(unit.first, unit.rows, scratch);
    case Stage::kProject:
      return project(tower_.layers_[index], unit.first, unit.rows, scratch);
    case Stage::kAttend:
      return attend(tower_.layers_[index], unit.first, unit.rows, scratch);
    case Stage::kMerge:
      return merge(tower_.mergers_[index], unit.index, unit.first, unit.rows, scratch);
  }
}

TensorView TowerPass::numbers(int64_t at, int64_t n) const {
  return {static_cast<std::byte*>(input_.data()) + at, DType::kI32, {n}};
}

TensorView TowerPass::residual(int64_t first, int64_t rows) const {
  return x_.view(DType::kF32, {grid_.patches(), tower_.spec_.hidden}).rows(first, rows);
}

ops::RopeTables TowerPass::tables(const Buffer& buffer, int64_t rows) const {
  const int64_t pairs = tower_.head_room_ / 2;
  const TensorView both = buffer.view(DType::kF32, {2 * rows, pairs});
  return {both.rows(0, rows), both.rows(rows, rows)};
}

// Rows of the picture as a sequence of their own, whose positions all see one another.
ops::Rows TowerPass::rows_of(int64_t first, int64_t n) const {
  const int64_t patches = grid_.patches(), unit = rows_of_unit(device_.kind());
  ops::Rows rows;
  rows.rows = rows.max_segment_rows = static_cast<int32_t>(n);
  rows.token_ids = rows.slots = numbers(at_.zeros, n);
  rows.rope_positions = rows.cache_positions = numbers(at_.counting, patches).rows(first, n);
  rows.segments = reinterpret_cast<ops::RowSegment*>(static_cast<std::byte*>(input_.data()) + at_.segments);
  rows.segments += first / unit;
  rows.n_segments = 1;
  rows.max_positions = static_cast<int32_t>(patches);
  ops::RowView& view = rows.views[ops::kWholeView];
  view.begin = numbers(at_.zeros, n);
  view.end = numbers(at_.ends, n);
  view.page_table = {static_cast<std::byte*>(input_.data()) + at_.page, DType::kI32, {1, 1}};
  return rows;
}

ops::KvLayer TowerPass::kv() const {
  ops::KvLayer kv;
  kv.base = static_cast<std::byte*>(kv_.data());
  kv.page_size = static_cast<int32_t>(round_up(tower_.spec_.most_patches(), kPagePositions));
  kv.kv_heads = tower_.spec_.heads;
  kv.head_dim = tower_.head_room_;
  kv.dtype = activation();
  kv.page_stride = ops::kv_layer_bytes(kv.page_size, kv.kv_heads, kv.head_dim, kv.dtype);
  return kv;
}

void TowerPass::embed(int64_t first, int64_t rows, Arena& scratch) {
  const TowerSpec& spec = tower_.spec_;
  const PictureRules& rules = spec.rules;
  Stream& stream = device_.stream();
  ops::PatchValues values = {rules.patch_size, spec.frames};
  for (size_t i = 0; i < 3; ++i) {
    values.mean[i] = rules.mean[i] * 255.0f;
    values.std[i] = rules.std[i] * 255.0f;
  }
  const TensorView pixels(input_.data(), DType::kU8, {grid_.patches() * rules.patch_size * rules.patch_size * 3});
  const TensorView patches = scratch.take(activation(), {rows, spec.patch_values()}), x = residual(first, rows);
  ops::take_patches(stream, pixels, grid_, values, first, patches);
  ops::linear(stream, tower_.patch_.weight, patches, x, {}, scratch);
  ops::add_places(stream, tower_.patch_.bias.view, tower_.places_.view, spec.side, grid_, first, x);
  const ops::RopeTables all = tables(angles_, grid_.patches());
  const TensorView axes = numbers(at_.axes, grid_.patches() * ops::kRopeAxes);
  ops::take_rope_angles(stream, tables(edge_angles_, spec.most_patches() / rules.merge_size),
                        numbers(at_.pair_axes, tower_.head_room_ / 2),
                        TensorView(axes.data, DType::kI32, {grid_.patches(), ops::kRopeAxes}).rows(first, rows),
                        {all.cos.rows(first, rows), all.sin.rows(first, rows)});
}

void TowerPass::project(const Tower::Layer& layer, int64_t first, int64_t n, Arena& scratch) {
  const TowerSpec& spec = tower_.spec_;
  Stream& stream = device_.stream();
  const int64_t heads = spec.heads, room = tower_.head_room_;
  const TensorView h = scratch.take(activation(), {n, spec.hidden});
  ops::layer_norm(stream, residual(first, n), layer.norm1.weight.view, layer.norm1.bias.view, spec.norm_eps, h);
  ops::QkvWrite write;
  write.qkv = scratch.take(DType::kF32, {n, 3 * int64_t{spec.hidden}});
  ops::linear(stream, layer.qkv.weight, h, write.qkv, {}, scratch);
  write.bias = layer.qkv.bias.view;
  write.heads = spec.heads;
  write.narrow_dim = spec.head_dim();
  write.rope = tables(angles_, grid_.patches());
  write.kv = kv();
  write.q_out = q_.view(activation(), {grid_.patches(), heads, room}).rows(first, n);
  const ops::Rows rows = rows_of(first, n);
  ops::write_qkv(stream, rows, rows.views[ops::kWholeView], write);
}

void TowerPass::attend(const Tower::Layer& layer, int64_t first, int64_t n, Arena& scratch) {
  const TowerSpec& spec = tower_.spec_;
  Stream& stream = device_.stream();
  const int32_t heads = spec.heads, room = tower_.head_room_;
  const TensorView x = residual(first, n), h = scratch.take(activation(), {n, spec.hidden});
  {
    const ArenaScope scope(scratch);
    const ops::Rows rows = rows_of(first, n);
    const ops::RowView& view = rows.views[ops::kWholeView];
    ops::Attention attention;
    attention.q = q_.view(activation(), {grid_.patches(), heads, room}).rows(first, n);
    attention.heads = heads;
    attention.scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim()));
    attention.work = plans_[static_cast<size_t>(first / rows_of_unit(device_.kind()))];
    attention.kv = kv();
    attention.out = scratch.take(activation(), {n, int64_t{heads} * room});
    ops::attention(stream, rows, view, attention, scratch);
    ops::narrow_heads(stream, attention.out, heads, h);
  }
  ops::linear(stream, layer.proj.weight, h, x, {ops::EndKind::kAdd}, scratch);
  ops::layer_norm(stream, x, layer.norm2.weight.view, layer.norm2.bias.view, spec.norm_eps, h,
                  {layer.proj.bias.view, layer.fc2.bias.view});
  const TensorView inner = scratch.take(activation(), {n, spec.inner});
  ops::linear(stream, layer.fc1.weight, h, inner, {}, scratch);
  ops::gelu(stream, inner, layer.fc1.bias.view, true);
  ops::linear(stream, layer.fc2.weight, inner, x, {ops::EndKind::kAdd}, scratch);
}

void TowerPass::merge(const Tower::Merger& merger, int64_t kind, int64_t first, int64_t n, Arena& scratch) {
  const TowerSpec& spec = tower_.spec_;
  Stream& stream = device_.stream();
  const int64_t width = spec.merger_width(), tokens = n / spec.merged(), all = grid_.patches() / spec.merged();
  // A square's patches follow one another, so joining them is another view of the rows.
  const TensorView joined = scratch.take(activation(), {tokens, width});
  TensorView x = residual(first, n), normed = {joined.data, activation(), {n, spec.hidden}};
  if (merger.joins_first) {
    x = {x.data, DType::kF32, {tokens, width}};
    normed = joined;
  }
  ops::layer_norm(stream, x, merger.norm.weight.view, merger.norm.bias.view, spec.norm_eps, normed);
  const TensorView inner = scratch.take(activation(), {tokens, width});
  ops::linear(stream, merger.fc1.weight, joined, inner, {}, scratch);
  ops::gelu(stream, inner, merger.fc1.bias.view, false);
  const TensorView out = out_.view(DType::kF32, {spec.kinds() * all, spec.out});
  ops::linear(stream, merger.fc2.weight, inner, out.rows(kind * all + first / spec.merged(), tokens),
              {ops::EndKind::kStore, merger.fc2.bias.view}, scratch);
}

}  // namespace volley::model
