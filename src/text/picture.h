// Picture files of prompts as a model sees them.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <string_view>

namespace volley::text {

// Reads a PNG, JPEG, WebP or GIF file (its first frame): turned as its EXIF data say, on white, in a size that `rules`
// permit, with the bytes of Pillow's bicubic resampling. `pixels` false: reads the header alone and leaves `rgb` null.
// The pixels of the last files are kept, 64 MiB of them: the same file with the same rules in the same `space` gives
// the same vector again. `cancelled` may be null. Any thread; memory is counted over all: the call waits for room to
// decode. kInvalidArgument: a file of another kind, a damaged one, or one beyond the limits in textkit.h;
// kResourceExhausted: pictures of other requests fill the memory; kCancelled.
Result<PromptPicture> read_picture(std::string_view file, const PictureRules& rules, bool pixels,
                                   std::string_view space, const std::atomic<bool>* cancelled);

}  // namespace volley::text
