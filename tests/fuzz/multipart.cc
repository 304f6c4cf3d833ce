// Forms that upload a file: the line of Content-Type, then the body, whole and in pieces as they may arrive.
#include "fuzz.h"
#include "serve/files/file_upload.h"

using namespace volley;
using serve::MultipartReader;

namespace {

struct Taken {
  std::vector<std::string> parts;  // names, file names, bytes
  bool good = false;

  bool operator==(const Taken&) const = default;
};

// In pieces of `size` bytes.
template <typename Feed>
bool feed_all(std::string_view body, size_t size, Feed feed) {
  for (; !body.empty(); body.remove_prefix(std::min(size, body.size()))) {
    if (!feed(body.substr(0, size))) return false;
  }
  return true;
}

Taken take(const std::string& boundary, std::string_view body, size_t size) {
  Taken taken;
  MultipartReader reader(boundary,
                         {[&](const MultipartReader::Part& part) {
                            taken.parts.insert(taken.parts.end(), {part.name, part.filename.value_or(""), ""});
                            return MultipartReader::Verdict();
                          },
                          [&](std::string_view bytes) {
                            fuzz::require(!taken.parts.empty() && !bytes.empty());
                            taken.parts.back() += bytes;
                            return MultipartReader::Verdict();
                          }});
  taken.good = feed_all(body, size, [&](std::string_view piece) { return !reader.feed(piece); }) && !reader.finish();
  fuzz::require(taken.parts.size() <= 3 * MultipartReader::kMaxParts);
  return taken;
}

// Stores the file's bytes. There may be few: the parser does not depend on them.
const std::shared_ptr<serve::FileStore>& store() {
  static const std::shared_ptr<serve::FileStore> made = [] {
    serve::FileStore::Limits limits;
    limits.max_file_bytes = 256;
    auto opened = serve::FileStore::open(fuzz::folder(), limits);
    fuzz::require(opened.ok());
    return *opened;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, text] = fuzz::choose(data, size, 32);
  const size_t line_end = text.find('\n');
  if (line_end == std::string_view::npos) return 0;
  const auto boundary = MultipartReader::boundary_of(text.substr(0, line_end));
  if (!boundary) return 0;
  const std::string_view body = text.substr(line_end + 1);
  const size_t piece = size_t{1} + kind;
  const Taken whole = take(*boundary, body, body.size() + 1);
  fuzz::require(take(*boundary, body, piece) == whole);

  serve::FileUpload upload(store(), "", "", *boundary);
  const bool fed = feed_all(body, piece, [&](std::string_view bytes) { return upload.feed(bytes); });
  const int status = fed ? upload.finish().status : upload.failure().status;
  fuzz::require(status == 200 ? whole.good : status >= 400 && status < 500);
  for (const serve::StoredFile& file : store()->list("")) store()->erase(file);
  return 0;
}
