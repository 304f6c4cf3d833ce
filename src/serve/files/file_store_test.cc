// The folder of files over restarts and crashes, and its refusals.
#include "serve/files/file_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace volley::serve {
namespace {

namespace fs = std::filesystem;

class FileStoreTest : public ::testing::Test {
 protected:
  ~FileStoreTest() override { fs::remove_all(folder_); }

  std::shared_ptr<FileStore> open(FileStore::Limits limits = {}) {
    auto store = FileStore::open(folder_.string(), limits);
    EXPECT_TRUE(store.ok()) << store.error().message;
    return store.ok() ? *store : nullptr;
  }
  static ApiResult<StoredFile> keep(FileStore& store, const std::string& owner, const std::string& bytes) {
    auto writer = store.begin(owner);
    if (auto* error = std::get_if<ApiError>(&writer)) return *error;
    if (auto error = std::get<0>(writer)->append(bytes)) return *error;
    StoredFile about;
    about.filename = "../../evil";
    about.purpose = "batch";
    return std::get<0>(writer)->keep(about);
  }
  size_t on_disk() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_ / "files"), fs::directory_iterator()));
  }

  const fs::path folder_ = fs::temp_directory_path() / ("volley_file_store_" + std::to_string(getpid()));
};

TEST_F(FileStoreTest, KeepsFilesOfEachOwnerOverARestart) {
  std::string first, second;
  {
    const auto store = open();
    first = std::get<StoredFile>(keep(*store, "a", "one")).id;
    second = std::get<StoredFile>(keep(*store, "a", "two!")).id;
    std::get<StoredFile>(keep(*store, "b", "three"));
  }
  const auto store = open();
  const auto files = store->list("a");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].id, first);
  EXPECT_EQ(files[1].bytes, 4);
  EXPECT_EQ(files[1].filename, "../../evil");
  EXPECT_FALSE(store->find("b", first));
  EXPECT_FALSE(store->find("a", "../lock"));
  store->erase(*store->find("a", first));
  EXPECT_FALSE(store->find("a", first));
  EXPECT_TRUE(store->find("a", second));
  EXPECT_EQ(on_disk(), 4u);
}

TEST_F(FileStoreTest, OwnersAreTheSameAfterARestartAndTellNothingElsewhere) {
  const std::string owner = open()->owner_of("key");
  EXPECT_EQ(open()->owner_of("key"), owner);
  EXPECT_NE(open()->owner_of("key2"), owner);
  EXPECT_EQ(open()->owner_of(""), "");
  fs::remove_all(folder_);
  EXPECT_NE(open()->owner_of("key"), owner);
}

TEST_F(FileStoreTest, RefusesAFolderWhoseOwnersAreDamaged) {
  open();
  std::ofstream(folder_ / "owners") << std::string(36, 'z');
  const auto store = FileStore::open(folder_.string(), {});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message.find("owners is damaged"), std::string::npos) << store.error().message;
}

TEST_F(FileStoreTest, DropsWhatACrashLeft) {
  std::string id;
  {
    const auto store = open();
    id = std::get<StoredFile>(keep(*store, "", "x")).id;
  }
  std::ofstream(folder_ / "files/file-1.part") << "half";
  std::ofstream(folder_ / "files/file-2") << "no note";
  std::ofstream(folder_ / "files/file-3.json") << "{}";
  std::ofstream(folder_ / "files/file-4.json") << "{";
  const auto store = open();
  ASSERT_EQ(store->list("").size(), 1u);
  EXPECT_EQ(on_disk(), 2u);
}

TEST_F(FileStoreTest, HoldsItsBounds) {
  const auto store = open({.max_file_bytes = 10, .max_total_bytes = 15, .max_files = 2});
  const auto status_of = [](const ApiResult<StoredFile>& kept) {
    const auto* error = std::get_if<ApiError>(&kept);
    return error ? error->status : 200;
  };
  EXPECT_EQ(status_of(keep(*store, "", std::string(11, 'x'))), 413);
  EXPECT_EQ(status_of(keep(*store, "", std::string(10, 'x'))), 200);
  EXPECT_EQ(status_of(keep(*store, "", std::string(6, 'x'))), 400);
  EXPECT_EQ(status_of(keep(*store, "", std::string(5, 'x'))), 200);
  EXPECT_EQ(status_of(keep(*store, "", "")), 400);  // the number of files
  store->erase(store->list("").front());
  EXPECT_EQ(status_of(keep(*store, "", std::string(10, 'x'))), 200);
  EXPECT_EQ(on_disk(), 4u);
}

TEST_F(FileStoreTest, AnOwnerHasAQuota) {
  const FileStore::Limits limits = {.max_total_bytes = 25 << 10, .max_owner_bytes = 10 << 10};
  const auto problem = [](const ApiResult<StoredFile>& kept) {
    const auto* error = std::get_if<ApiError>(&kept);
    return error ? error->status : 200;
  };
  {
    const auto store = open(limits);
    EXPECT_EQ(problem(keep(*store, "a", std::string(6 << 10, 'x'))), 200);
    const auto refused = keep(*store, "a", std::string(5 << 10, 'x'));
    ASSERT_EQ(problem(refused), 413);
    EXPECT_EQ(std::get<ApiError>(refused).code, "storage_quota");
    EXPECT_NE(std::get<ApiError>(refused).message.find("--files-quota-mb"), std::string::npos);
    EXPECT_EQ(problem(keep(*store, "a", std::string(4 << 10, 'x'))), 200) << "what was refused is not counted";
    EXPECT_EQ(problem(keep(*store, "b", std::string(10 << 10, 'x'))), 200) << "another key's is its own";
    EXPECT_EQ(store->reserve("c", 10 << 10), FileStore::Room::kNoneForAll) << "all together have theirs too";
    EXPECT_EQ(store->reserve("b", 1), FileStore::Room::kNoneForOwner);
  }
  const auto store = open(limits);
  EXPECT_EQ(problem(keep(*store, "a", "x")), 413) << "after a restart too";
  store->erase(store->list("a").front());
  EXPECT_EQ(problem(keep(*store, "a", std::string(6 << 10, 'x'))), 200);
}

// A disk has no smaller files, so many small ones are large.
TEST_F(FileStoreTest, AnEmptyFileTakesOfItsOwnersQuota) {
  const FileStore::Limits limits = {.max_owner_bytes = 2 * FileStore::kLeastBytes};
  const auto code = [](const ApiResult<StoredFile>& kept) {
    const auto* error = std::get_if<ApiError>(&kept);
    return error ? error->code : "";
  };
  {
    const auto store = open(limits);
    EXPECT_EQ(code(keep(*store, "a", "")), "");
    EXPECT_EQ(code(keep(*store, "a", std::string(FileStore::kLeastBytes + 1, 'x'))), "storage_quota");
    EXPECT_EQ(code(keep(*store, "a", std::string(FileStore::kLeastBytes, 'x'))), "");
    EXPECT_EQ(code(keep(*store, "a", "")), "storage_quota");
    EXPECT_EQ(code(keep(*store, "b", "")), "");
  }
  const auto store = open(limits);
  EXPECT_EQ(code(keep(*store, "a", "")), "storage_quota") << "after a restart too";
  store->erase(store->list("a").front());
  EXPECT_EQ(code(keep(*store, "a", "")), "");
}

// A key always has room, whatever another one keeps.
TEST_F(FileStoreTest, OneOfSeveralOwnersLeavesRoomForOthers) {
  const auto kept = [](FileStore& store, const std::string& owner, const std::string& bytes) {
    size_t files = 0;
    for (; std::holds_alternative<StoredFile>(keep(store, owner, bytes)); ++files) EXPECT_LT(files, 100u);
    return files;
  };
  const auto store = open({.max_total_bytes = 1000, .max_files = 20});
  store->share();
  EXPECT_EQ(kept(*store, "a", ""), 10u) << "half";
  EXPECT_EQ(kept(*store, "b", ""), 5u) << "half of what is left";
  EXPECT_EQ(kept(*store, "a", ""), 0u);
  for (const std::string owner : {"a", "b"}) {
    for (const StoredFile& file : store->list(owner)) store->erase(file);
  }
  EXPECT_EQ(kept(*store, "a", std::string(100, 'x')), 5u);
  EXPECT_EQ(store->reserve("a", 1), FileStore::Room::kLeftToOthers);
  EXPECT_EQ(store->reserve("b", 250), FileStore::Room::kThere);
  EXPECT_EQ(store->reserve("b", 1), FileStore::Room::kLeftToOthers);
}

TEST_F(FileStoreTest, IsOneServers) {
  const auto store = open();
  const auto second = FileStore::open(folder_.string(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another server"), std::string::npos) << second.error().message;
}

// A server may be killed at three moments of handing over a batch's results.
TEST_F(FileStoreTest, AdoptsOnce) {
  StoredFile about;
  about.id = "file-00000000";
  const std::string from = (folder_ / "batches/b.jsonl").string();
  {
    const auto store = open();
    std::ofstream(from) << "12345";
    ASSERT_TRUE(store->adopt(from, about).ok());
    EXPECT_EQ(store->find("", about.id)->bytes, 5);
    EXPECT_FALSE(fs::exists(from));
    EXPECT_TRUE(store->adopt(from, about).ok());
  }
  // Killed between the note and the move.
  fs::rename(folder_ / "files/file-00000000", from);
  const auto store = open();
  EXPECT_FALSE(store->find("", about.id));
  ASSERT_TRUE(store->adopt(from, about).ok());
  EXPECT_EQ(store->find("", about.id)->bytes, 5);
}

}  // namespace
}  // namespace volley::serve
