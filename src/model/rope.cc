// Rotary frequencies, computed as transformers computes them: in fp32, in the same order of operations. An error of one
// unit in the last place of a frequency is multiplied by the position, so "nearly the same formula" would show.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/rope.h"

namespace volley::model {
namespace {

// theta^(2i / head_dim), computed in double and rounded once, because the last bit of powf differs between libraries.
std::vector<float> base_powers(double theta, int32_t head_dim) {
  std::vector<float> powers(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    powers[i] = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
  }
  return powers;
}

// llama3: long wavelengths are stretched by the factor, short ones stay, and those in between are blended.
void stretch_llama3(const RopeSpec& spec, std::vector<float>& frequencies) {
  const float factor = static_cast<float>(spec.factor);
  const float original = static_cast<float>(spec.original_max_position);
  const float low = static_cast<float>(spec.low_freq_factor);
  const float width = static_cast<float>(spec.high_freq_factor - spec.low_freq_factor);
  const float low_wavelength = static_cast<float>(spec.original_max_position / spec.low_freq_factor);
  const float high_wavelength = static_cast<float>(spec.original_max_position / spec.high_freq_factor);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > low_wavelength) {
      frequency = frequency / factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (original / wavelength - low) / width;
      frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// YaRN (Peng et al., 2023, arXiv:2309.00071): the dimension whose wavelength makes `rotations` turns over the original
// length.
double yarn_dimension(const RopeSpec& spec, double rotations) {
  return spec.dim * std::log(spec.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(spec.theta));
}

std::vector<float> yarn_frequencies(const RopeSpec& spec, const std::vector<float>& powers) {
  double low = yarn_dimension(spec, spec.beta_fast);
  double high = yarn_dimension(spec, spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, spec.dim - 1.0);
  if (low == high) high += 0.001;  // a step function, without a division by zero
  std::vector<float> frequencies(powers.size());
  for (size_t i = 0; i < powers.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    const float interpolated = 1.0f / (static_cast<float>(spec.factor) * powers[i]);
    frequencies[i] = interpolated * (1.0f - keep) + 1.0f / powers[i] * keep;
  }
  return frequencies;
}

std::vector<float> scaled_frequencies(const RopeSpec& spec) {
  const std::vector<float> powers = base_powers(spec.theta, spec.dim);
  if (spec.scaling == RopeSpec::Scaling::kYarn) return yarn_frequencies(spec, powers);
  std::vector<float> frequencies(powers.size());
  std::transform(powers.begin(), powers.end(), frequencies.begin(), [](float power) { return 1.0f / power; });
  if (spec.scaling == RopeSpec::Scaling::kLinear) {
    for (float& frequency : frequencies) frequency /= static_cast<float>(spec.factor);
  } else if (spec.scaling == RopeSpec::Scaling::kLlama3) {
    stretch_llama3(spec, frequencies);
  }
  return frequencies;
}

// The factor on cos and sin; 1 unless the scaling is YaRN.
double attention_factor(const RopeSpec& spec) {
  if (spec.scaling != RopeSpec::Scaling::kYarn) return 1.0;
  if (spec.attention_factor) return *spec.attention_factor;
  const auto magnitude = [&](double mscale) {
    return spec.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(spec.factor) + 1.0;
  };
  const double mscale = spec.mscale.value_or(0);
  const double all_dim = spec.mscale_all_dim.value_or(0);
  return mscale != 0 && all_dim != 0 ? magnitude(mscale) / magnitude(all_dim) : magnitude(1);
}

}  // namespace

RopeValues rope_values(const RopeSpec& spec, int64_t positions) {
  VOLLEY_CHECK(spec.dim > 0 && spec.dim % 2 == 0);
  VOLLEY_CHECK_GE(positions, 0);
  RopeSpec rotation = spec;
  if (spec.rotated > 0) rotation.dim = spec.rotated;
  VOLLEY_CHECK(rotation.dim % 2 == 0 && rotation.dim <= spec.dim);
  std::vector<float> frequencies = scaled_frequencies(rotation);
  if (spec.turning > 0) frequencies.resize(static_cast<size_t>(spec.turning));
  const auto pairs = static_cast<size_t>(spec.dim / 2);
  const float scale = static_cast<float>(attention_factor(spec));
  RopeValues values;
  values.cos.reserve(static_cast<size_t>(positions) * pairs);
  values.sin.reserve(values.cos.capacity());
  for (int64_t position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      values.cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * scale);
      values.sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * scale);
    }
    values.cos.resize(values.cos.size() + pairs - frequencies.size(), 1.0f);
    values.sin.resize(values.cos.size(), 0.0f);
  }
  return values;
}

std::vector<int32_t> pair_axes(const RopeSpec& spec) {
  std::vector<int32_t> axes(static_cast<size_t>(spec.dim / 2));
  for (int32_t i = 0; i < std::ssize(axes); ++i) {
    const int32_t axis = i % ops::kRopeAxes;
    if (i / ops::kRopeAxes < spec.axes[axis]) axes[i] = axis;
  }
  return axes;
}

std::vector<std::pair<int64_t, int64_t>> head_order(const RopeSpec& spec) {
  if (spec.interleaved) {
    std::vector<std::pair<int64_t, int64_t>> order;
    for (const int64_t first : {0, 1}) {
      for (int64_t i = first; i < spec.dim; i += 2) order.emplace_back(i, 1);
    }
    return order;
  }
  if (spec.rotated == 0 || spec.rotated == spec.dim) return {};
  const int64_t half = spec.rotated / 2, rest = (spec.dim - spec.rotated) / 2;
  return {{0, half}, {spec.rotated, rest}, {half, half}, {spec.rotated + rest, rest}};
}

int64_t rope_bytes(const RopeSpec& spec, int64_t positions) {
  const int64_t half = spec.dim / 2;
  return 2 * positions * half * int64_t{sizeof(float)} + (has_axes(spec) ? half * int64_t{sizeof(int32_t)} : 0);
}

Result<Rope> make_rope(Device& device, const RopeSpec& spec, int64_t positions) {
  Rope rope;
  const int64_t half = spec.dim / 2;
  VOLLEY_ASSIGN(rope.buffer, device.allocate(static_cast<size_t>(rope_bytes(spec, positions))));
  const TensorView both = rope.buffer.view(DType::kF32, {2 * positions, half});
  rope.tables = {both.rows(0, positions), both.rows(positions, positions)};
  if (has_axes(spec)) rope.axes = TensorView(both.as<float>() + both.count(), DType::kI32, {half});
  if (device.stream().dry()) return rope;
  const RopeValues values = rope_values(spec, positions);
  device.upload(rope.tables.cos.data, values.cos.data(), values.cos.size() * sizeof(float));
  device.upload(rope.tables.sin.data, values.sin.data(), values.sin.size() * sizeof(float));
  if (has_axes(spec)) device.upload(rope.axes.data, pair_axes(spec).data(), static_cast<size_t>(rope.axes.bytes()));
  return rope;
}

}  // namespace volley::model
