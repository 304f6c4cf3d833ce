#include "weights/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace volley::weights {
namespace {

constexpr size_t kSmallBytes = 1 << 20;

// The mapped files, for a signal handler, which may only read atomics. Files beyond the table's end are not found.
struct Mapping {
  std::atomic<uintptr_t> begin = 0, end = 0;  // 0: a free entry
  std::atomic<const char*> path = nullptr;
};
std::array<Mapping, 1024> g_mappings;
std::mutex g_mappings_mutex;  // taken by writers

void remember(const void* data, size_t size, const char* path) {
  const std::lock_guard lock(g_mappings_mutex);
  for (Mapping& mapping : g_mappings) {
    if (mapping.begin != 0) continue;
    mapping.path = path;
    mapping.end = reinterpret_cast<uintptr_t>(data) + size;
    mapping.begin = reinterpret_cast<uintptr_t>(data);
    return;
  }
}

void forget(const void* data) {
  const std::lock_guard lock(g_mappings_mutex);
  for (Mapping& mapping : g_mappings) {
    if (mapping.begin == reinterpret_cast<uintptr_t>(data)) mapping.begin = 0;
  }
}

}  // namespace

const char* mapped_file_at(const void* address) {
  static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const Mapping& mapping : g_mappings) {
    const uintptr_t begin = mapping.begin;
    if (begin != 0 && at >= begin && at / page <= (mapping.end - 1) / page) return mapping.path;
  }
  return nullptr;
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  VOLLEY_ASSIGN(const OpenFile file, open_regular_file(path));
  if (file.bytes <= kSmallBytes) {
    std::shared_ptr<MappedFile> small(new MappedFile(path));
    VOLLEY_ASSIGN(small->contents_, read_file(path, kSmallBytes));
    VOLLEY_RETURN_IF_ERROR(refuse_lfs_pointer(small->contents_, path));
    small->data_ = reinterpret_cast<const std::byte*>(small->contents_.data());
    small->size_ = small->contents_.size();
    return std::shared_ptr<const MappedFile>(std::move(small));
  }
  void* data = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (data == MAP_FAILED) {
    const std::string message = path + " cannot be mapped into memory: " + std::strerror(errno) + ".";
    return errno == ENOMEM ? resource_exhausted(message) : invalid_argument(message);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), file.bytes));
}

MappedFile::MappedFile(std::string path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size), mapped_(true) {
  remember(data_, size_, path_.c_str());
}

MappedFile::~MappedFile() {
  if (!mapped_) return;
  forget(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> range) const {
  if (range.empty()) return;
  VOLLEY_CHECK(contains(range.data()) && range.size() <= static_cast<size_t>(data_ + size_ - range.data()));
  if (!mapped_) return;
  // Linux maps up to so much around each page that is read.
  constexpr uintptr_t kAround = 64 << 10;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)), around = std::max(kAround, page);
  const uintptr_t first = reinterpret_cast<uintptr_t>(data_), last = (first + size_ + page - 1) / page * page;
  const uintptr_t begin = std::max(first, reinterpret_cast<uintptr_t>(range.data()) / around * around);
  const uintptr_t end =
      std::min(last, (reinterpret_cast<uintptr_t>(range.data()) + range.size() + around - 1) / around * around);
  // This is advice: a system that ignores it only uses more memory.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace volley::weights
