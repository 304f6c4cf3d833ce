#include "text/picture.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "base/sha256.h"
#include "text/textkit_handle.h"

namespace volley::text {
namespace {

constexpr int64_t kMostDecoding = int64_t{1} << 30;  // one picture of any size may be decoded
constexpr int64_t kMostKept = int64_t{2} << 30;
// The pixels of so many files are kept: a conversation sends its pictures with every turn.
constexpr size_t kMostReadBytes = size_t{64} << 20, kMostReadFiles = 256;

// Memory of pictures: what decoders take now, and the pixels that requests keep.
class PictureMemory {
 public:
  // False: cancelled.
  bool begin(int64_t bytes, const std::atomic<bool>* cancelled) {
    std::unique_lock lock(mutex_);
    while (decoding_ > 0 && decoding_ + bytes > kMostDecoding) {
      if (cancelled && *cancelled) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    decoding_ += bytes;
    return true;
  }
  void end(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    decoding_ -= bytes;
    changed_.notify_all();
  }
  bool keep(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (kept_ + bytes > kMostKept) return false;
    kept_ += bytes;
    return true;
  }
  void drop(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    kept_ -= bytes;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t decoding_ = 0, kept_ = 0;  // guarded by mutex_
};

// The last files and their pictures.
class ReadFiles {
 public:
  std::optional<PromptPicture> find(const Sha256& file) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(files_, file, &File::hash);
    if (found == files_.end()) return std::nullopt;
    files_.splice(files_.begin(), files_, found);
    return found->picture;
  }
  void add(const Sha256& file, const PromptPicture& picture) {
    if (picture.rgb->size() > kMostReadBytes) return;  // all others would go for nothing
    const std::lock_guard lock(mutex_);
    if (std::ranges::count(files_, file, &File::hash) > 0) return;  // another thread read it meanwhile
    bytes_ += picture.rgb->size();
    files_.push_front({file, picture});
    while (bytes_ > kMostReadBytes || files_.size() > kMostReadFiles) {
      bytes_ -= files_.back().picture.rgb->size();
      files_.pop_back();
    }
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    files_.clear();
    bytes_ = 0;
  }

 private:
  struct File {
    Sha256 hash;
    PromptPicture picture;
  };
  std::mutex mutex_;
  std::list<File> files_;  // guarded by mutex_; the last first
  size_t bytes_ = 0;       // guarded by mutex_
};

// Never destroyed, because requests may outlive static objects.
PictureMemory& memory() {
  static auto* const memory = new PictureMemory;
  return *memory;
}
ReadFiles& read_files() {
  static auto* const files = new ReadFiles;
  return *files;
}

Sha256 hash_of(std::string_view file, const PictureRules& rules, std::string_view space) {
  const int64_t sizes[] = {rules.token_side(), rules.min_pixels, rules.max_pixels};
  std::vector<uint8_t> head(sizeof(sizes));
  std::memcpy(head.data(), sizes, sizeof(sizes));
  head.insert(head.end(), space.begin(), space.end());
  return content_hash(head, {reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

}  // namespace

Result<PromptPicture> read_picture(std::string_view file, const PictureRules& rules, bool pixels,
                                   std::string_view space, const std::atomic<bool>* cancelled) {
  const textkit_picture_rules sizes{static_cast<uint32_t>(rules.token_side()), static_cast<uint64_t>(rules.min_pixels),
                                    static_cast<uint64_t>(rules.max_pixels)};
  textkit_picture_size size{};
  OwnedBytes rgb, error;
  textkit_status status = textkit_picture_measure(view(file), &sizes, &size, error.out());
  if (status != TEXTKIT_OK) return textkit_error(status, error);
  PromptPicture picture;
  picture.width = static_cast<int32_t>(size.width);
  picture.height = static_cast<int32_t>(size.height);
  if (!pixels) return picture;
  const Sha256 hash = hash_of(file, rules, space);
  if (auto before = read_files().find(hash)) return *std::move(before);
  const int64_t bytes = int64_t{picture.width} * picture.height * 3;
  if (!memory().keep(bytes)) {
    read_files().clear();
    if (!memory().keep(bytes)) {
      return resource_exhausted("Pictures of other requests take all memory for pictures: try again in a moment.");
    }
  }
  const std::shared_ptr<std::vector<uint8_t>> kept(new std::vector<uint8_t>, [bytes](std::vector<uint8_t>* made) {
    delete made;
    memory().drop(bytes);
  });
  const auto decoding = static_cast<int64_t>(size.memory);
  if (!memory().begin(decoding, cancelled)) return Error{ErrorCode::kCancelled, "The picture is not wanted any more."};
  status = textkit_picture_read(view(file), &sizes, cancel_of(cancelled), &size, rgb.out(), error.out());
  memory().end(decoding);
  if (status != TEXTKIT_OK) return textkit_error(status, error);
  *kept = rgb.bytes();
  picture.rgb = kept;
  read_files().add(hash, picture);
  return picture;
}

}  // namespace volley::text
