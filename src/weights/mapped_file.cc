#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace volley::weights {
namespace {

Error system_error(const std::string& path, const char* what) {
  const int code = errno;
  const std::string message = path + ": " + what + ": " + std::strerror(code) + ".";
  if (code == ENOENT || code == ENOTDIR) return not_found(message);
  return code == ENOMEM ? resource_exhausted(message) : invalid_argument(message);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer before its type can be checked.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return system_error(path, "cannot be opened");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error(path, "cannot be examined");
  if (!S_ISREG(info.st_mode)) return invalid_argument(path + " is not a regular file.");
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {  // an empty mapping is an error
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return system_error(path, "cannot be mapped into memory");
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::span<const std::byte> range) const {
  if (range.empty()) return;
  VOLLEY_CHECK(contains(range.data()) && range.size() <= static_cast<size_t>(data_ + size_ - range.data()));
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(range.data()) + range.size()) / page * page;
  // Advice: if the system does not take it, nothing is lost but memory.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace volley::weights
