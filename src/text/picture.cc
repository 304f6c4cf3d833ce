#include "text/picture.h"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "text/textkit_handle.h"

namespace volley::text {
namespace {

constexpr int64_t kMostDecoding = int64_t{1} << 30;  // one picture of any size may be decoded
constexpr int64_t kMostKept = int64_t{2} << 30;

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

// Never destroyed, because requests may outlive static objects.
PictureMemory& memory() {
  static auto* const memory = new PictureMemory;
  return *memory;
}

}  // namespace

Result<PromptPicture> read_picture(std::string_view file, const PictureRules& rules, bool pixels,
                                   const std::atomic<bool>* cancelled) {
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
  const int64_t bytes = int64_t{picture.width} * picture.height * 3;
  if (!memory().keep(bytes)) {
    return resource_exhausted("Pictures of other requests take all memory for pictures: try again in a moment.");
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
  return picture;
}

}  // namespace volley::text
