#include "serve/files/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/string_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/http/random_id.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxNoteBytes = size_t{1} << 20;

void sync_folder(const std::string& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) (void)!fsync(fd.get());  // some file systems cannot
}

bool is_uuid(const std::string& text) {
  try {
    return text.size() == 36 && !boost::uuids::string_generator()(text).is_nil();
  } catch (const std::exception&) {
    return false;
  }
}

std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      return write_error(path);
    }
  }
  return {};
}

Status move_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return write_error(to);
  sync_folder(folder_of(to));
  return {};
}

// The message must not name the server's paths.
ApiError disk_error() {
  ApiError error = http_error(503,
                              "The server cannot write to the disk of its files: it is full or broken. "
                              "Delete files, or tell whoever runs the server.");
  error.code = "storage_full";
  return error;
}

ApiError limit_error(std::string message) {
  ApiError error = http_error(400, std::move(message));
  error.code = "storage_limit";
  return error;
}

ApiError quota_error(size_t most) {
  ApiError error = http_error(413, "The server keeps no more than " + std::to_string(most) +
                                       " bytes of files and results for an API key (--files-quota-mb): delete some.");
  error.code = "storage_quota";
  return error;
}

size_t quota_bytes(size_t bytes_of_file) {
  return std::max(bytes_of_file, FileStore::kLeastBytes);
}

std::optional<StoredFile> read_note(const std::string& path) {
  const auto text = read_file(path, kMaxNoteBytes);
  if (!text.ok()) return std::nullopt;
  const Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  StoredFile file;
  try {
    file = {json.at("id"),    json.at("owner"),      json.at("filename"), json.at("purpose"),
            json.at("bytes"), json.at("created_at"), json.at("sequence"), json.value("client", "")};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return file;
}

}  // namespace

Status write_whole(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  {
    const FileDescriptor fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (fd.get() < 0) return write_error(path);
    Status written = write_all(fd.get(), text, path);
    if (written.ok() && fdatasync(fd.get()) != 0) written = write_error(path);
    if (!written.ok()) {
      ::unlink(part.c_str());
      return written;
    }
  }
  return move_file(part, path);
}

FileStore::FileStore(std::string folder, Limits limits, FileDescriptor lock)
    : folder_(std::move(folder)),
      limits_(limits),
      lock_(std::move(lock)),
      places_({.total = limits.max_files, .share = FairSpace::kNoLimit}),
      bytes_({.total = limits.max_total_bytes, .share = FairSpace::kNoLimit}),
      quota_({.share = FairSpace::kNoLimit,
              .each = limits.max_owner_bytes > 0 ? limits.max_owner_bytes : FairSpace::kNoLimit}) {}

Result<std::shared_ptr<FileStore>> FileStore::open(const std::string& folder, Limits limits) {
  const auto unusable = [&](const std::string& why) {
    return invalid_argument("The folder of files " + folder + " (--files-dir) cannot be used: " + why + ".");
  };
  std::error_code error;
  for (const char* inside : {"", "/files", "/batches"}) {
    const std::string path = folder + inside;
    const bool made = fs::create_directories(path, error);
    if (error) return unusable(error.message());
    // Clients' data are private.
    if (made) fs::permissions(path, fs::perms::owner_all, error);
  }
  FileDescriptor lock(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return unusable(std::strerror(errno));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return unusable("another server uses it");
  std::shared_ptr<FileStore> store(new FileStore(folder, limits, std::move(lock)));
  if (const Status loaded = store->load_owners(); !loaded.ok()) return unusable(loaded.error().message);
  if (const Status loaded = store->load(); !loaded.ok()) return unusable(loaded.error().message);
  return store;
}

Status FileStore::load_owners() {
  const std::string path = folder_ + "/owners";
  const auto text = read_file(path, 64);
  if (text.ok() && is_uuid(*text)) {
    owner_space_ = *text;
    return {};
  }
  if (text.ok() || text.error().code != ErrorCode::kNotFound) {
    return data_loss(path + " is damaged: nobody could be told whose the files are");
  }
  owner_space_ = to_string(boost::uuids::random_generator()());
  return write_whole(path, owner_space_);
}

std::string FileStore::owner_of(std::string_view key) const {
  if (key.empty()) return "";
  const boost::uuids::name_generator_sha1 owners(boost::uuids::string_generator()(owner_space_));
  return to_string(owners(key.data(), key.size()));
}

Status FileStore::load() {
  std::vector<fs::path> unknown;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_ + "/files", error)) {
    if (entry.path().extension() != ".json") {
      unknown.push_back(entry.path());
      continue;
    }
    auto file = read_note(entry.path());
    struct stat about {};
    if (!file || file->id != entry.path().stem() || stat(path(file->id).c_str(), &about) != 0) {
      unknown.push_back(entry.path());
      continue;
    }
    const auto bytes = static_cast<size_t>(file->bytes);
    places_.take(file->owner);
    bytes_.take(file->owner, bytes);
    quota_.take(file->owner, quota_bytes(bytes));
    next_sequence_ = std::max(next_sequence_, file->sequence + 1);
    files_.emplace(file->id, std::move(*file));
  }
  if (error) return data_loss(error.message());
  for (const fs::path& left : unknown) {
    if (left.filename().string().starts_with("file-") && !files_.contains(left.filename().string())) {
      fs::remove(left, error);
    }
  }
  return {};
}

ApiResult<std::unique_ptr<FileStore::Writer>> FileStore::begin(std::string owner) {
  {
    const std::lock_guard lock(mutex_);
    const Room room = places_.room(owner);
    if (room == Room::kNoneForAll) {
      return limit_error("The server keeps no more than " + std::to_string(limits_.max_files) +
                         " files (--max-files): delete some.");
    }
    if (room == Room::kLeftToOthers) {
      return limit_error("An API key keeps no more files than are left for others (--max-files): delete some.");
    }
    if (quota_.room(owner, kLeastBytes) != Room::kThere) return quota_error(limits_.max_owner_bytes);
    places_.take(owner);
    quota_.take(owner, kLeastBytes);
  }
  std::string id = "file-" + random_id();
  const int fd = ::open((path(id) + ".part").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  std::unique_ptr<Writer> writer(new Writer(this, std::move(owner), std::move(id), fd));
  if (fd < 0) return disk_error();
  return writer;
}

FileStore::Writer::~Writer() {
  if (kept_) return;
  ::unlink((store_.path(id_) + ".part").c_str());
  store_.forget(owner_, static_cast<size_t>(bytes_));
}

std::optional<ApiError> FileStore::Writer::append(std::string_view bytes) {
  const Limits& limits = store_.limits_;
  if (static_cast<size_t>(bytes_) + bytes.size() > limits.max_file_bytes) {
    return http_error(
        413, "The file is larger than " + std::to_string(limits.max_file_bytes) + " bytes (--max-file-bytes).");
  }
  const auto before = static_cast<size_t>(bytes_);
  switch (store_.reserve(owner_, bytes.size(), quota_bytes(before + bytes.size()) - quota_bytes(before))) {
    case Room::kThere:
      break;
    case Room::kNoneForAll:
      return limit_error("The server keeps no more than " + std::to_string(limits.max_total_bytes) +
                         " bytes of files (--max-files-bytes): delete some.");
    case Room::kNoneForOwner:
      return quota_error(limits.max_owner_bytes);
    case Room::kLeftToOthers:
      return limit_error(
          "An API key keeps no more bytes of files than are left for others (--max-files-bytes): delete some.");
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  if (!write_all(fd_.get(), bytes, id_).ok()) return disk_error();
  return std::nullopt;
}

ApiResult<StoredFile> FileStore::Writer::keep(StoredFile about) {
  const std::string path = store_.path(id_);
  if (fdatasync(fd_.get()) != 0 || !move_file(path + ".part", path).ok()) return disk_error();
  about.id = id_;
  about.owner = owner_;
  about.bytes = bytes_;
  about = store_.numbered(std::move(about));
  if (!store_.note(about).ok()) {
    ::unlink(path.c_str());
    return disk_error();
  }
  kept_ = true;
  store_.add(about);
  return about;
}

StoredFile FileStore::numbered(StoredFile file) {
  const std::lock_guard lock(mutex_);
  file.created_at = static_cast<int64_t>(std::time(nullptr));
  file.sequence = next_sequence_++;
  return file;
}

Status FileStore::note(const StoredFile& file) const {
  const Json json = {
      {"id", file.id},       {"owner", file.owner},           {"filename", file.filename}, {"purpose", file.purpose},
      {"bytes", file.bytes}, {"created_at", file.created_at}, {"sequence", file.sequence}, {"client", file.client}};
  return write_whole(path(file.id) + ".json", json.dump());
}

void FileStore::add(StoredFile file) {
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(file.id, std::move(file));
}

// The note comes first: after a crash between the two it is dropped, and the file is still where its caller looks.
Status FileStore::adopt(const std::string& from, StoredFile about) {
  {
    const std::lock_guard lock(mutex_);
    if (files_.contains(about.id)) return {};
  }
  struct stat state {};
  if (stat(from.c_str(), &state) != 0) return write_error(from);
  about.bytes = state.st_size;
  about = numbered(std::move(about));
  VOLLEY_RETURN_IF_ERROR(note(about));
  VOLLEY_RETURN_IF_ERROR(move_file(from, path(about.id)));
  {
    const std::lock_guard lock(mutex_);
    const auto bytes = static_cast<size_t>(about.bytes);
    places_.take(about.owner);
    quota_.take(about.owner, quota_bytes(bytes) - bytes);
  }
  add(std::move(about));
  return {};
}

std::optional<StoredFile> FileStore::find(std::string_view owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner) return std::nullopt;
  return found->second;
}

std::vector<StoredFile> FileStore::list(std::string_view owner, std::string_view client) const {
  std::vector<StoredFile> files;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_) {
      if (file.owner == owner && (client.empty() || file.client == client)) files.push_back(file);
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return files;
}

ApiResult<OpenFile> FileStore::content(const StoredFile& file) const {
  auto opened = open_regular_file(path(file.id));
  if (!opened.ok()) return http_error(500, "The bytes of this file cannot be read any more.");
  return std::move(*opened);
}

// A reader keeps reading: the bytes go with the last one.
void FileStore::erase(const StoredFile& file) {
  {
    const std::lock_guard lock(mutex_);
    if (files_.erase(file.id) == 0) return;
  }
  ::unlink((path(file.id) + ".json").c_str());
  ::unlink(path(file.id).c_str());
  forget(file.owner, static_cast<size_t>(file.bytes));
}

void FileStore::share() {
  const std::lock_guard lock(mutex_);
  places_.set_share(1);
  bytes_.set_share(1);
}

size_t FileStore::fair_share() const {
  const std::lock_guard lock(mutex_);
  return places_.limits().share;
}

FileStore::Room FileStore::reserve(const std::string& owner, size_t bytes) {
  return reserve(owner, bytes, bytes);
}

FileStore::Room FileStore::reserve(const std::string& owner, size_t bytes, size_t own_bytes) {
  const std::lock_guard lock(mutex_);
  Room room = bytes_.room(owner, bytes);
  if (room != Room::kNoneForAll && quota_.room(owner, own_bytes) != Room::kThere) room = Room::kNoneForOwner;
  if (room != Room::kThere) return room;
  bytes_.take(owner, bytes);
  quota_.take(owner, own_bytes);
  return room;
}

void FileStore::count(const std::optional<std::string>& owner, size_t bytes) {
  constexpr const char* kNobody = "?";  // not an owner's name
  const std::lock_guard lock(mutex_);
  bytes_.take(owner.value_or(kNobody), bytes);
  if (owner) quota_.take(*owner, bytes);
}

void FileStore::release(const std::string& owner, size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_.give_back(owner, bytes);
  quota_.give_back(owner, bytes);
}

void FileStore::forget(const std::string& owner, size_t bytes) {
  const std::lock_guard lock(mutex_);
  places_.give_back(owner);
  bytes_.give_back(owner, bytes);
  quota_.give_back(owner, quota_bytes(bytes));
}

}  // namespace volley::serve
