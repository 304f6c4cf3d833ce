// A GGUF file's header: typed metadata, and where its tensors lie (format: github.com/ggml-org/ggml, docs/gguf.md).
//
//   "GGUF", u32 version, u64 tensors, u64 values
//   values    string key, u32 type, value; an array: u32 type, u64 count, elements; a string: u64 bytes, UTF-8
//   tensors   string name, u32 rank, u64 dimensions (the innermost first), u32 type, u64 offset
//   the rest  from the next multiple of general.alignment on the tensors' bytes; offsets count from here
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::gguf {

// A header above this is refused: those of vocabularies of 260,000 tokens have some 10 MB.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;

// How a tensor's elements are stored, by the format's numbers.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kMXFP4 = 39,
};
// Each block of `values` values of a row takes `bytes` bytes. values is 0 for types that are not built.
struct TypeFacts {
  std::string name;  // "Q4_K"
  int64_t values = 0, bytes = 0;
  bool is_plain() const { return values == 1; }
};
TypeFacts facts_of(TensorType type);

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // the outermost first, as elsewhere in this program; each > 0
  TensorType type = TensorType::kF32;
  uint64_t begin = 0, end = 0;  // bytes of the file; equal where the type is not built
};

// Threads: const functions from any thread.
class Header {
 public:
  // Parses `begin`, the first bytes of a file of `file_bytes`, which must outlive the header. No value: the header is
  // longer than `begin`. Every tensor lies within the file, at a multiple of the alignment, and overlaps no other;
  // names and keys are there once. kDataLoss and kUnimplemented name the file (`path`, for messages) and what is wrong.
  static Result<std::optional<Header>> parse(std::span<const std::byte> begin, uint64_t file_bytes,
                                             const std::string& path);

  // Values of a key. No value, or an empty list, if the key is missing or of another kind.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;  // a number alone is a list of one
  std::vector<bool> booleans(std::string_view key) const;
  std::vector<std::string> keys() const;

  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  friend class HeaderParser;
  friend Result<Header> read_header(const std::string& path);
  enum class Kind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
  struct Value {
    Kind kind = Kind::kU8;  // the elements' kind
    bool is_array = false;
    uint64_t count = 1;
    const std::byte* data = nullptr;
  };
  static size_t size_of(Kind kind);  // bytes; 0: strings
  const Value* find(std::string_view key) const;

  std::map<std::string, Value, std::less<>> values_;
  std::vector<Tensor> tensors_;
  std::shared_ptr<const std::vector<std::byte>> bytes_;  // read_header()'s bytes
};

// Errors as Header::parse() and open_regular_file(); kDataLoss for a Git LFS pointer. The last header is kept for the
// next call that names its unchanged file, until forget_headers() gives its memory back. Any thread.
Result<Header> read_header(const std::string& path);
void forget_headers();

// A model in one file, or in the parts NAME-00001-of-00003.gguf and so on.
struct File {
  struct Part {
    std::string path;
    Header header;
  };
  std::vector<Part> parts;  // one at least

  const Header& header() const { return parts.front().header; }  // the one with the metadata
  const std::string& path() const { return parts.front().path; }
  // Null: there is none.
  const Tensor* tensor(std::string_view name) const;
};
// `path`: the file, or the first of its parts. Errors as read_header(), and kNotFound for a part that is missing.
Result<File> open_file(const std::string& path);

}  // namespace volley::gguf
