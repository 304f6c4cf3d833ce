// The embedded web page: `GET /` and the files that it names. Any thread.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace volley::serve {

// One of `bytes` and `gzip` may be empty: fonts are compressed already, and libraries are kept only compressed.
struct PageFile {
  std::string_view path;          // as in a request: "/" or "/web/NAME"
  std::string_view content_type;  // with its charset
  std::string_view bytes;
  std::string_view gzip;     // the bytes, compressed
  std::string_view version;  // changes with the bytes
};

// All files, in no particular order. All data lie in the program itself.
std::span<const PageFile> page_files();

// Null: no such file. `path` comes without its query.
const PageFile* find_page_file(std::string_view path);

// Whether a client with this Accept-Encoding reads gzip. Without one it is unknown: false.
bool accepts_gzip(std::string_view accept_encoding);

// Headers of these files, except ETag. The policy forbids other origins, inline scripts and styles, and HTML made from
// strings, so a model's text cannot become code.
std::span<const std::pair<std::string_view, std::string_view>> page_headers();

}  // namespace volley::serve
