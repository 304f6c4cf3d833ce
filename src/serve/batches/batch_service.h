// /v1/batches: files of requests that the server answers beside its clients, as `volley batch` does.
//
//   FOLDER/batches/ID.json            its state: written whole at every change but for the counts, which the lines tell
//   FOLDER/batches/ID.output.jsonl    results with status 200; it only grows (result_file.h)
//   FOLDER/batches/ID.errors.jsonl    other results
//
// When a batch is over, the two become files of its owner. A killed server continues where the lines end: each line of
// the input has one result, in one of the two.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "serve/api/page.h"
#include "serve/batches/batch_run.h"
#include "serve/batches/batch_state.h"
#include "serve/files/file_store.h"
#include "serve/http/log.h"

namespace volley::serve {

class ResultFile;

// The index of a running batch is in memory, 16 bytes a line, for up to 16 batches. Larger files are refused.
inline constexpr int64_t kMaxBatchLines = 1'000'000;
// All known batches are in memory, finished ones too. Their number is at most that of files.
inline constexpr size_t kMaxBatchRecordBytes = size_t{32} << 20;

// Any thread.
class BatchService {
 public:
  // Asks a line for an owner; see BatchRun::Hooks. Once `given_up` is true the reply is not needed and comes soon.
  using Ask = std::function<BatchReply(const HttpRequest&, const std::string& owner, std::function<void()> wake,
                                       const std::atomic<bool>* given_up)>;
  struct Options {
    std::set<std::string> owners;  // owners whose batches may run; others wait until one of their keys is back
    int max_open_lines = 1;        // for all batches together, but at least one for each running batch
  };

  // Reads the store's folder. `store` and the objects that `ask` uses must outlive the service.
  BatchService(FileStore& store, ServerLog log);
  ~BatchService();  // stop(), then waits

  // Starts running batches. Call once, when the engine is ready.
  void start(Options options, Ask ask);
  // Gives up open lines; the next start answers them. Returns at once.
  void stop();
  // Call after stop(). False: a line still keeps a runner busy after this time, and the destructor would wait for it.
  bool wait(std::chrono::milliseconds patience);

  // `request`: POST /v1/batches.
  ApiResult<Batch> create(const std::string& owner, const HttpRequest& request);
  std::optional<Batch> find(std::string_view owner, const std::string& id) const;
  // No value: the query's `after` is none of the owner's batches. With `client`, lists only those from there.
  std::optional<Page<Batch>> list(std::string_view owner, const PageQuery& query, std::string_view client = {}) const;
  // No value: there is no such batch.
  std::optional<ApiResult<Batch>> cancel(std::string_view owner, const std::string& id);
  // Deletes the file, unless an unfinished batch reads it: then returns that one's id.
  std::optional<std::string> erase(const StoredFile& file);

 private:
  struct Record {
    Batch batch;
    bool running = false;
    BatchRun* run = nullptr;  // for wake()
    std::atomic<bool> given_up{false};
  };
  // A runner's work on one batch.
  class Turn;

  void load();
  void loop();
  Record* next();  // REQUIRES: mutex_
  std::string note_path(const std::string& id) const { return store_.batch_folder() + "/" + id + ".json"; }
  void save(const Batch& batch) const;
  std::optional<ApiError> make_room(const Batch& batch);  // REQUIRES: mutex_

  FileStore& store_;
  const ServerLog log_;
  Options options_;  // constant once started, like ask_
  Ask ask_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> running_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::unique_ptr<Record>> records_;  // by id; guarded by mutex_
  int64_t next_sequence_ = 1;                               // guarded by mutex_
  std::vector<std::thread> runners_;
  size_t runs_ = 0;  // runs of all runners; guarded by mutex_
};

}  // namespace volley::serve
