// /v1/batches: files of requests that the server answers beside its clients, in the manner of `volley batch`.
//
//   FOLDER/batches/ID.json            its state: written whole at every change but for the counts, which the lines tell
//   FOLDER/batches/ID.output.jsonl    results, which only grow (result_file.h): of lines with status 200
//   FOLDER/batches/ID.errors.jsonl    of the others
//
// When a batch is over the two become files of its owner. A server that is killed goes on where the lines end: each
// line of the input has one result, in one of the two.
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

// A file of more lines is no batch: the index of one that runs is in memory, 16 bytes and a bit a line, for up to 16
// batches at a time.
inline constexpr int64_t kMaxBatchLines = 1'000'000;
// All batches that are known are in memory, those that are over too. There are no more of them than files.
inline constexpr size_t kMaxBatchRecordBytes = size_t{32} << 20;

// Any thread.
class BatchService {
 public:
  // Asks a line for an owner; see BatchRun::Hooks. Once `given_up` is true the reply does not matter, and comes soon.
  using Ask = std::function<BatchReply(const HttpRequest&, const std::string& owner, std::function<void()> wake,
                                       const std::atomic<bool>* given_up)>;
  struct Options {
    std::set<std::string> owners;  // whose batches may run; those of others wait until a key of theirs is back
    int max_open_lines = 1;        // of all batches together, but at least one of each that runs
  };

  // Reads what the store's folder has. `store` and what `ask` uses must outlive the service.
  BatchService(FileStore& store, ServerLog log);
  ~BatchService();  // stop(), and waits

  // The engine is there: batches run from now on. Once.
  void start(Options options, Ask ask);
  // Gives up the lines that are open; the next start answers them. Returns at once.
  void stop();
  // After stop(). False: a line still keeps a runner busy after this time, and so would the destructor.
  bool wait(std::chrono::milliseconds patience);

  // `request`: POST /v1/batches.
  ApiResult<Batch> create(const std::string& owner, const HttpRequest& request);
  std::optional<Batch> find(std::string_view owner, const std::string& id) const;
  // Nothing: the query's `after` is none of the owner's.
  // With `client` those alone that came from there.
  std::optional<Page<Batch>> list(std::string_view owner, const PageQuery& query, std::string_view client = {}) const;
  // Nothing: there is no such batch.
  std::optional<ApiResult<Batch>> cancel(std::string_view owner, const std::string& id);
  // Deletes the file unless a batch that is not over reads it: then that one's id.
  std::optional<std::string> erase(const StoredFile& file);

 private:
  struct Record {
    Batch batch;
    bool running = false;
    BatchRun* run = nullptr;  // to wake
    std::atomic<bool> given_up{false};
  };
  // One batch in a runner's hands.
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
  std::map<std::string, std::unique_ptr<Record>> records_;  // guarded by mutex_; by id
  int64_t next_sequence_ = 1;                               // guarded by mutex_
  std::vector<std::thread> runners_;
  size_t runs_ = 0;  // of runners; guarded by mutex_
};

}  // namespace volley::serve
