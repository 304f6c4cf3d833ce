// Batches of several owners on an engine that a test plays: who waits for whom, and what an end leaves.
#include "serve/batches/batch_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <thread>

#include "serve/testing/fake_engine.h"

namespace volley::serve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBatchLine =
    R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})";

std::string line_with(const std::string& id) {
  return R"({"custom_id": ")" + id + R"(", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})" +
         "\n";
}

class BatchServiceTest : public ::testing::Test {
 protected:
  ~BatchServiceTest() override {
    close();
    fs::remove_all(folder_);
  }

  void open(FileStore::Limits limits = {}) {
    auto store = FileStore::open(folder_.string(), limits);
    ASSERT_TRUE(store.ok()) << store.error().message;
    store_ = *store;
    service_ = std::make_unique<BatchService>(*store_, ServerLog(nullptr, LogFormat::kText));
  }
  void close() {
    service_.reset();
    store_.reset();
  }
  void reopen(FileStore::Limits limits = {}) {
    close();
    open(limits);
  }
  void start(BatchService::Ask ask) { service_->start({{"one", "two", "three"}, 4}, std::move(ask)); }
  void start_answering() {
    start([](const HttpRequest&, const std::string&, const std::function<void()>&,
             const std::atomic<bool>*) -> BatchReply { return done(); });
  }
  // Answers `answers` lines. The others count in `asked`, and are answered with `status` once they are given up.
  void start_hanging(std::atomic<int>& asked, int status = 503, int answers = 0) {
    start([&asked, status, answers](const HttpRequest&, const std::string&, const std::function<void()>&,
                                    const std::atomic<bool>* given_up) mutable -> BatchReply {
      if (answers-- > 0) return done();
      ++asked;
      while (!*given_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return error_response(http_error(status, "It was given up."));
    });
  }
  StoredFile upload(const std::string& owner, const std::string& text) {
    auto writer = std::get<0>(store_->begin(owner));
    EXPECT_FALSE(writer->append(text));
    StoredFile about;
    about.filename = "in.jsonl";
    about.purpose = "batch";
    return std::get<StoredFile>(writer->keep(about));
  }
  // Makes a failing batch for each of these owners, in a store with room for three. Returns their ids.
  std::vector<std::string> fail_in_turn(const std::vector<std::string>& owners) {
    open({.max_files = 3});
    const StoredFile of_one = upload("one", "no request"), of_two = upload("two", "no request");
    std::vector<std::string> ids;
    for (const std::string& owner : owners) {
      const StoredFile& file = owner == "one" ? of_one : of_two;
      start_answering();
      ids.push_back(std::get<Batch>(create(file)).id);
      EXPECT_EQ(wait_for_end(file.owner, ids.back()).status, BatchStatus::kFailed);
      reopen({.max_files = 3});
    }
    return ids;
  }
  ApiResult<Batch> create(const StoredFile& file, const std::string& metadata = "null") {
    HttpRequest request{"POST", "/v1/batches", "application/json",
                        R"({"input_file_id":")" + file.id +
                            R"(","endpoint":"/v1/completions","completion_window":"24h","metadata":)" + metadata + "}"};
    request.client = "192.0.2.7";
    return service_->create(file.owner, request);
  }
  std::string add(const std::string& owner, const std::string& text = kBatchLine) {
    return std::get<Batch>(create(upload(owner, text))).id;
  }
  Batch wait_for_end(const std::string& owner, const std::string& id) {
    for (int i = 0; i < 30'000; ++i) {
      const auto batch = service_->find(owner, id);
      if (batch && is_over(batch->status)) return *batch;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << id << " does not end";
    return {};
  }
  static HttpResponse done() {
    HttpResponse response;
    response.body = "{}";
    return response;
  }

  const fs::path folder_ = fs::temp_directory_path() / ("volley_batch_service_" + std::to_string(getpid()));
  std::shared_ptr<FileStore> store_;
  std::unique_ptr<BatchService> service_;
};

// Holds for any number of one owner's batches, and any duration.
TEST_F(BatchServiceTest, OneOwnersBatchesKeepNobodyWaiting) {
  open();
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::string> asked;
  bool released = false;
  for (int i = 0; i < 6; ++i) add("one");
  start([&](const HttpRequest&, const std::string& owner, const std::function<void()>&,
            const std::atomic<bool>*) -> BatchReply {
    std::unique_lock lock(mutex);
    asked.insert(owner);
    changed.notify_all();
    changed.wait(lock, [&] { return released; });
    return done();
  });
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(300), [&] { return asked.contains("one"); }));
  }
  // time for that owner's other batches to take what they can
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::string second = add("two"), third = add("three");
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(300), [&] { return asked.size() == 3; }));
    released = true;
    changed.notify_all();
  }
  EXPECT_EQ(wait_for_end("two", second).completed, 1);
  EXPECT_EQ(wait_for_end("three", third).completed, 1);
  service_.reset();  // the first owner's running batches use objects above
}

TEST_F(BatchServiceTest, ABatchThatIsInterruptedAgainAndAgainHasFailed) {
  open();
  const std::string id = add("one");
  start([](const HttpRequest&, const std::string&, const std::function<void()>&,
           const std::atomic<bool>*) -> BatchReply { throw std::runtime_error("an engine's bug"); });
  const Batch batch = wait_for_end("one", id);
  EXPECT_EQ(batch.status, BatchStatus::kFailed);
  ASSERT_EQ(batch.errors.size(), 1u);
  EXPECT_EQ(batch.errors[0].code, "internal_error");
}

// A killed server leaves the note of the last attempt. These tests put that note back after a clean end.
class KilledServerTest : public BatchServiceTest {
 protected:
  // Runs until `id` gets one more line than it `answers`, and ends as if killed then. False: the batch ended first.
  bool run_and_kill(const std::string& id, int answers = 0) {
    std::atomic<int> asked{0};
    start_hanging(asked, 503, answers);
    bool over = false;
    while (!asked && !over) {
      over = is_over(service_->find("one", id)->status);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::string note = read(id);
    close();
    if (!over) std::ofstream(path(id)) << note;
    open();
    return !over;
  }
  std::string path(const std::string& id) const { return (folder_ / "batches" / (id + ".json")).string(); }
  std::string read(const std::string& id) const {
    std::ifstream file(path(id));
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(KilledServerTest, ABatchThatIsThereThreeTimesWithoutAResultHasFailed) {
  open();
  const std::string id = add("one");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(run_and_kill(id)) << i;
  EXPECT_FALSE(run_and_kill(id));
  const Batch batch = *service_->find("one", id);
  EXPECT_EQ(batch.status, BatchStatus::kFailed);
  ASSERT_EQ(batch.errors.size(), 1u);
  EXPECT_EQ(batch.errors[0].code, "internal_error");
}

TEST_F(KilledServerTest, ACleanEndBeginsTheCountAnew) {
  open();
  const std::string id = add("one");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run_and_kill(id));
  std::atomic<int> asked{0};
  start_hanging(asked);
  while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  reopen();
  EXPECT_EQ(service_->find("one", id)->attempts, 0);
}

TEST_F(KilledServerTest, ANewResultBeginsTheCountAnew) {
  open();
  std::string input;
  for (int i = 0; i < 10; ++i) input += line_with(std::to_string(i));
  const std::string id = add("one", input);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(run_and_kill(id, 1)) << i;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run_and_kill(id)) << i;
  ASSERT_TRUE(run_and_kill(id, 1)) << "its last attempt";
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(run_and_kill(id)) << i;
  start_answering();
  EXPECT_EQ(wait_for_end("one", id).completed, 10);
}

// Otherwise the line that ended the server would cost others' results their time, and end the server at every start.
TEST_F(KilledServerTest, LinesThatMayHaveBeenOpenAreAskedOneByOne) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{std::vector<std::string>(20, "a")}; },
                    std::chrono::milliseconds(2));
  const auto metrics = std::make_shared<Metrics>("m");
  open();
  std::string input;
  for (int i = 0; i < 12; ++i) input += line_with(std::to_string(i));
  for (const bool killed : {false, true}) {
    const std::string id = add("one", input);
    if (killed) {
      ASSERT_TRUE(run_and_kill(id));
    }
    std::vector<int> open_lines;  // number of open lines when each was asked
    start([&](const HttpRequest&, const std::string&, std::function<void()> wake,
              const std::atomic<bool>*) -> BatchReply {
      open_lines.push_back(engine.running());
      Generation::Plan plan;
      plan.choices.resize(1);
      plan.info.prompts.resize(1);
      plan.max_response_bytes = 1 << 20;
      return std::get<0>(Generation::start(engine, metrics, std::move(plan), std::move(wake)));
    });
    EXPECT_EQ(wait_for_end("one", id).completed, 12);
    reopen();
    ASSERT_EQ(open_lines.size(), 12u);
    const auto careful = open_lines.begin() + 4;  // after the first 4, which ran at once
    EXPECT_EQ(*std::max_element(open_lines.begin(), careful) == 0, killed);
    EXPECT_GT(*std::max_element(careful, open_lines.end()), 0);
  }
}

// The server was killed twice while both ran, so only one of them runs the third time.
TEST_F(KilledServerTest, LastAttemptsAreMadeOneByOne) {
  open();
  const std::string first = add("one"), second = add("two");
  close();
  for (const std::string& id : {first, second}) {
    std::string note = read(id);
    const size_t at = note.find("\"attempts\":0");
    ASSERT_NE(at, std::string::npos);
    std::ofstream(path(id)) << note.replace(at, 12, "\"attempts\":2");
  }
  open();
  std::mutex mutex;
  std::set<std::string> asked;
  std::atomic<bool> released{false};
  start([&](const HttpRequest&, const std::string& owner, const std::function<void()>&,
            const std::atomic<bool>*) -> BatchReply {
    {
      const std::lock_guard lock(mutex);
      asked.insert(owner);
    }
    while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done();
  });
  const std::string third = add("three");
  const auto has = [&](const char* owner) {
    const std::lock_guard lock(mutex);
    return asked.contains(owner);
  };
  while (!has("one") || !has("three")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(has("two"));
  released = true;
  EXPECT_EQ(wait_for_end("two", second).completed, 1);
  wait_for_end("one", first);
  wait_for_end("three", third);
  service_.reset();
}

// A line may take long before the engine gets it.
TEST_F(BatchServiceTest, WorkOnALineIsGivenUpAndNoResult) {
  open();
  const std::string first = add("one"), second = add("two");
  std::atomic<int> asked{0};
  start_hanging(asked, 400);
  while (asked < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(service_->wait(std::chrono::milliseconds(1)));
  ASSERT_TRUE(service_->cancel("one", first));
  EXPECT_EQ(wait_for_end("one", first).status, BatchStatus::kCancelled);
  service_->stop();
  EXPECT_TRUE(service_->wait(std::chrono::seconds(300)));
  const auto left = service_->find("two", second);
  EXPECT_FALSE(is_over(left->status));
  EXPECT_EQ(left->failed, 0);
}

// On a server without keys a name is all that keeps others from files and batches.
TEST_F(BatchServiceTest, NamesCannotBeGuessed) {
  open();
  std::set<std::string> halves;
  for (int i = 0; i < 8; ++i) {
    const StoredFile file = upload("one", kBatchLine);
    const std::string batch = std::get<Batch>(create(file)).id;
    for (const std::string& id : {file.id, batch}) {
      const std::string digits = id.substr(id.find_first_of("-_") + 1);
      ASSERT_EQ(digits.size(), 32u) << id;
      EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
      halves.insert({digits.substr(0, 16), digits.substr(16)});
    }
  }
  EXPECT_EQ(halves.size(), 32u) << "no half is the server's or a count";
}

TEST_F(BatchServiceTest, AFileThatABatchReadsIsNotDeleted) {
  open();
  const StoredFile file = upload("one", kBatchLine);
  const std::string id = std::get<Batch>(create(file)).id;
  EXPECT_EQ(service_->erase(file), id);
  EXPECT_TRUE(store_->find("one", file.id));
  start_answering();
  EXPECT_EQ(wait_for_end("one", id).completed, 1);
  EXPECT_FALSE(service_->erase(file));
  EXPECT_FALSE(store_->find("one", file.id));
}

// They use their client's share of the engine, also after a restart.
TEST_F(BatchServiceTest, LinesAreOfTheClientThatMadeTheBatch) {
  open();
  const std::string id = add("one");
  reopen();
  std::atomic<int> of_it{0};
  start([&](const HttpRequest& request, const std::string&, const std::function<void()>&,
            const std::atomic<bool>*) -> BatchReply {
    of_it += request.client == "192.0.2.7" ? 1 : 0;
    return done();
  });
  EXPECT_EQ(wait_for_end("one", id).completed, 1);
  EXPECT_EQ(of_it, 1);
  service_.reset();
}

TEST_F(BatchServiceTest, AnOwnersNewBatchPushesOutItsOwnFirst) {
  const std::vector<std::string> ids = fail_in_turn({"two", "one", "one", "one"});
  EXPECT_TRUE(service_->find("two", ids[0]));
  EXPECT_FALSE(service_->find("one", ids[1]));
  EXPECT_TRUE(service_->find("one", ids[3]));
}

TEST_F(BatchServiceTest, AnOwnerWhoKeepsMoreMakesRoom) {
  const std::vector<std::string> ids = fail_in_turn({"one", "one", "one", "two"});
  EXPECT_FALSE(service_->find("one", ids[0]));
  EXPECT_TRUE(service_->find("one", ids[1]));
  EXPECT_TRUE(service_->find("two", ids[3]));
}

TEST_F(BatchServiceTest, OneOwnersWaitingBatchesLeaveRoomForOthers) {
  open({.max_files = 10});
  store_->share();
  const StoredFile of_one = upload("one", kBatchLine), of_two = upload("two", kBatchLine);
  const auto add_all = [&](const StoredFile& file) {
    int added = 0;
    for (;; ++added) {
      const auto batch = create(file);
      if (const auto* error = std::get_if<ApiError>(&batch)) {
        EXPECT_EQ(error->status, 429);
        EXPECT_NE(error->message.find("of this API key"), std::string::npos) << error->message;
        return added;
      }
    }
  };
  EXPECT_EQ(add_all(of_one), 5);
  EXPECT_EQ(add_all(of_two), 2);
}

// A known batch stays in memory.
TEST_F(BatchServiceTest, RecordsAreBoundedInBytes) {
  open();
  const StoredFile file = upload("one", kBatchLine);
  std::string metadata, value;
  for (int i = 0; i < 512; ++i) value += "\\u0001";  // six bytes a character
  for (int i = 0; i < 16; ++i) metadata += (i > 0 ? ",\"" : "{\"") + std::to_string(i) + "\":\"" + value + '"';
  metadata += '}';
  size_t added = 0;
  const size_t most = kMaxBatchRecordBytes / metadata.size();
  while (added <= most && std::holds_alternative<Batch>(create(file, metadata))) ++added;
  EXPECT_LE(added, most);
  EXPECT_GT(added, most * 9 / 10);
}

// An owner's list may have thousands.
TEST_F(BatchServiceTest, AListIsReadInPages) {
  open();
  const StoredFile file = upload("one", kBatchLine);
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(std::get<Batch>(create(file)).id);
  add("two");
  const auto ids_of = [](const Page<Batch>& page) {
    std::vector<std::string> found;
    for (const Batch& batch : page.items) found.push_back(batch.id);
    return found;
  };
  const auto first = service_->list("one", {.limit = 2});
  ASSERT_TRUE(first);
  EXPECT_EQ(ids_of(*first), (std::vector{ids[0], ids[1]}));
  EXPECT_TRUE(first->more);
  const auto last = service_->list("one", {.after = ids[1], .limit = 3});
  ASSERT_TRUE(last);
  EXPECT_EQ(ids_of(*last), (std::vector{ids[2], ids[3], ids[4]}));
  EXPECT_FALSE(last->more);
  const auto newest = service_->list("one", {.oldest_first = false, .after = ids[4], .limit = 1});
  ASSERT_TRUE(newest);
  EXPECT_EQ(ids_of(*newest), std::vector{ids[3]});
  EXPECT_FALSE(service_->list("two", {.after = ids[0], .limit = 1}));
  EXPECT_TRUE(service_->list("three", {.limit = 1})->items.empty());
}

TEST_F(BatchServiceTest, AWindowIsAShortText) {
  EXPECT_EQ(read_window("0024h"), 24 * 3600);
  EXPECT_FALSE(read_window(std::string(1000, '0') + "24h"));
}

// Otherwise their release would free too much room, or none.
TEST_F(BatchServiceTest, ResultsBeyondALowerLimitCountAllTheSame) {
  open();
  close();
  const std::string from = (folder_ / "batches/batch_1.output.jsonl").string();
  std::ofstream(from) << std::string(100, 'x');
  open({.max_total_bytes = 50});
  EXPECT_NE(store_->reserve("", 1), FileStore::Room::kThere);
  StoredFile about;
  about.id = "file-1";
  ASSERT_TRUE(store_->adopt(from, about).ok());
  store_->erase(*store_->find("", "file-1"));
  EXPECT_EQ(store_->reserve("", 50), FileStore::Room::kThere);
  EXPECT_NE(store_->reserve("", 1), FileStore::Room::kThere);
}

// Results count for the owner; existing ones are kept.
TEST_F(BatchServiceTest, ResultsPastAKeysQuotaEndItsBatch) {
  const std::string second =
      R"({"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})";
  const std::string input = std::string(kBatchLine) + "\n" + second;
  open({.max_owner_bytes = FileStore::kLeastBytes + 200});
  const std::string of_one = add("one", input), of_two = add("two");
  start([](const HttpRequest& request, const std::string& owner, const std::function<void()>&,
           const std::atomic<bool>*) -> BatchReply {
    HttpResponse response;
    response.body = owner == "one" ? R"({"text":")" + std::string(150, 'x') + "\"}" : "{}";
    return response;
  });
  const Batch batch = wait_for_end("one", of_one);
  EXPECT_EQ(batch.status, BatchStatus::kFailed);
  ASSERT_EQ(batch.errors.size(), 1u);
  EXPECT_EQ(batch.errors[0].code, "storage_quota");
  EXPECT_EQ(batch.completed, 0);
  EXPECT_EQ(wait_for_end("two", of_two).status, BatchStatus::kCompleted);
}

// A restart counts an unfinished batch's results for its owner.
TEST_F(BatchServiceTest, ResultsOfABatchThatIsNotOverCountForItsOwner) {
  open();
  const std::string id = add("one");
  close();
  std::ofstream(folder_ / "batches" / (id + ".output.jsonl")) << std::string(300, 'x');
  open({.max_owner_bytes = FileStore::kLeastBytes + 350});
  EXPECT_EQ(store_->reserve("one", 51), FileStore::Room::kNoneForOwner);
  EXPECT_EQ(store_->reserve("one", 50), FileStore::Room::kThere);
  EXPECT_EQ(store_->reserve("two", 350), FileStore::Room::kThere);
}

// An unreadable note names no owner: its results take room, but no owner's quota.
TEST_F(BatchServiceTest, ResultsOfADamagedBatchCountForNobody) {
  open();
  const std::string id = add("");
  const size_t input = std::string_view(kBatchLine).size();
  close();
  std::ofstream(folder_ / "batches" / (id + ".output.jsonl")) << std::string(300, 'x');
  std::ofstream(folder_ / "batches" / (id + ".json")) << "{}";
  open({.max_total_bytes = 1000 + input, .max_owner_bytes = 350 + FileStore::kLeastBytes});
  EXPECT_FALSE(service_->find("", id));
  EXPECT_EQ(store_->reserve("", 350), FileStore::Room::kThere);
  EXPECT_EQ(store_->reserve("", 1), FileStore::Room::kNoneForOwner);
  EXPECT_EQ(store_->reserve("one", 350), FileStore::Room::kThere);
  EXPECT_EQ(store_->reserve("two", 1), FileStore::Room::kNoneForAll) << "300 bytes of results are there";
}

}  // namespace
}  // namespace volley::serve
