// Shared by the fuzz targets. Each file here is one program of libFuzzer: LLVMFuzzerTestOneInput() hands the bytes to a
// real parser, which must neither crash, nor leak, nor take long. tests/data/fuzz/NAME holds its seed inputs.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace volley::fuzz {

// The first byte chooses, the rest is the text.
struct Choice {
  uint8_t kind = 0;
  std::string_view text;
};

inline Choice choose(const uint8_t* data, size_t size, uint8_t kinds) {
  if (size == 0) return {};
  return {static_cast<uint8_t>(data[0] % kinds), {reinterpret_cast<const char*>(data) + 1, size - 1}};
}

// A folder of this process, for parsers that read files. It is removed when the process ends.
inline const std::string& folder() {
  struct Folder {
    std::string path = std::filesystem::temp_directory_path() / ("volley-fuzz-" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder made;
  return made.path;
}

inline void write_file(const std::string& name, std::string_view text) {
  std::ofstream(folder() + "/" + name, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

// A broken promise of a parser is a finding, too.
inline void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace volley::fuzz
