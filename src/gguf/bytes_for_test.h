// For tests: GGUF files, good and bad, written byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace volley::gguf {

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline std::string raw_text(const std::string& text) {
  return raw(uint64_t{text.size()}) + text;
}

// A file of metadata, and of tensors whose bytes are all zero. REQUIRES: the types' numbers, as the format has them.
class Bytes {
 public:
  Bytes& number(const std::string& key, uint32_t value) { return add(key, 4, raw(value)); }
  Bytes& real(const std::string& key, float value) { return add(key, 6, raw(value)); }
  Bytes& boolean(const std::string& key, bool value) { return add(key, 7, raw(value)); }
  Bytes& text(const std::string& key, const std::string& value) { return add(key, 8, raw_text(value)); }
  Bytes& texts(const std::string& key, const std::vector<std::string>& list) {
    std::string all = raw(uint32_t{8}) + raw(uint64_t{list.size()});
    for (const std::string& text : list) all += raw_text(text);
    return add(key, 9, all);
  }
  template <typename T>
  Bytes& numbers(const std::string& key, uint32_t type, const std::vector<T>& list) {
    std::string all = raw(type) + raw(uint64_t{list.size()});
    for (const T value : list) all += raw(value);
    return add(key, 9, all);
  }
  Bytes& add(const std::string& key, uint32_t type, const std::string& value) {
    values_ += raw_text(key) + raw(type) + value;
    ++value_count_;
    return *this;
  }
  // dims: the innermost first, as in the file.
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t bytes) {
    return tensor_at(name, dims, type, data_bytes_, bytes);
  }
  Bytes& tensor_at(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                   uint64_t bytes) {
    tensors_ += raw_text(name) + raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count_;
    data_bytes_ += (bytes + 31) / 32 * 32;
    return *this;
  }

  uint32_t version = 3;

  std::string str() const {
    std::string file = "GGUF" + raw(version) + raw(tensor_count_) + raw(value_count_) + values_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32 + data_bytes_);
    return file;
  }

 private:
  std::string values_, tensors_;
  uint64_t value_count_ = 0, tensor_count_ = 0, data_bytes_ = 0;
};

// The metadata of a tiny model, and its embedding.
inline Bytes tiny_model(const std::string& architecture) {
  Bytes bytes;
  const std::string prefix = architecture + ".";
  bytes.text("general.architecture", architecture).number(prefix + "block_count", 2);
  bytes.number(prefix + "context_length", 128).number(prefix + "embedding_length", 32);
  bytes.number(prefix + "feed_forward_length", 48).number(prefix + "attention.head_count", 2);
  bytes.number(prefix + "attention.head_count_kv", 1).number(prefix + "attention.key_length", 16);
  bytes.real(prefix + "attention.layer_norm_rms_epsilon", 1e-5f).real(prefix + "rope.freq_base", 5e5f);
  return bytes.tensor("token_embd.weight", {32, 10}, 0, 1280);
}

}  // namespace volley::gguf
