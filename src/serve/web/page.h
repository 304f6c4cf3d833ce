// The web page, embedded into the program: what `GET /` and the files it names answer with. Any thread.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace volley::serve {

// One of `bytes` and `gzip` may be empty: fonts are compressed already, and of libraries only the compressed form is
// kept.
struct PageFile {
  std::string_view path;          // as in a request: "/" or "/web/NAME"
  std::string_view content_type;  // with its charset
  std::string_view bytes;
  std::string_view gzip;     // the same compressed
  std::string_view version;  // changes with the bytes
};

// All of them, in no particular order. Everything points into the program itself.
std::span<const PageFile> page_files();

// Null: no file has this path. `path` comes without its query.
const PageFile* find_page_file(std::string_view path);

// Whether a client that sends this Accept-Encoding reads gzip. One that sends none says nothing about it: false.
bool accepts_gzip(std::string_view accept_encoding);

// Headers to send with each of these files, ETag aside. The policy allows nothing from another origin, no inline script
// or style and no HTML made from strings, so text of a model cannot become code.
std::span<const std::pair<std::string_view, std::string_view>> page_headers();

}  // namespace volley::serve
