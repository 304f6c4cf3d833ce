#include "serve/batches/batch_service.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "serve/files/result_file.h"
#include "serve/http/random_id.h"
#include "serve/json/fields.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

namespace fs = std::filesystem;

// Batches that run at once and share the open lines. More run only for owners without a running one.
constexpr int kRunners = 4;
constexpr size_t kMaxRunners = 16;  // each holds the index of its input
// attempts without a new result, ended by an exception or with the server, before the batch fails
constexpr int kAttempts = 3;
constexpr int kRetries = 5;  // after a 503
constexpr std::chrono::seconds kAfterInterruption{1};
constexpr size_t kMaxBatchNoteBytes = size_t{1} << 20;

int64_t now() {
  return static_cast<int64_t>(std::time(nullptr));
}

// Reads the body of POST /v1/batches, without looking up its file.
ApiResult<Batch> parse_batch(const std::string& body) {
  const auto parsed = parse_json_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(std::get<nlohmann::json>(parsed));
  Batch batch;
  const bool has_file = in.string("input_file_id", batch.input_file_id);
  in.string("endpoint", batch.endpoint);
  in.string("completion_window", batch.completion_window);
  const nlohmann::json* metadata = in.get("metadata");
  if (in.error()) return *in.error();
  if (const auto unread = in.unread(); !unread.empty()) {
    return unsupported_field(unread.front(), "The field " + in_quotes(unread.front()) + " is not supported.");
  }
  if (!has_file) return invalid_field("input_file_id", "\"input_file_id\" is missing: upload a file, POST /v1/files.");
  if (!is_batch_url(batch.endpoint)) {
    return invalid_field("endpoint", "\"endpoint\" must be " + batch_urls() + ".");
  }
  const auto window = read_window(batch.completion_window);
  if (!window) {
    return invalid_field("completion_window",
                         "\"completion_window\" must be a time such as \"24h\": a number and s, m, h or d, up to 30 "
                         "days.");
  }
  if (auto error = check_metadata(metadata)) return *error;
  if (metadata != nullptr) batch.metadata = metadata->dump();
  batch.created_at = now();
  batch.expires_at = batch.created_at + *window;
  return batch;
}

}  // namespace

// Works on a copy of the batch, and updates the record at every change.
class BatchService::Turn {
 public:
  Turn(BatchService* service, Record* record) : service_(*service), record_(*record), batch_(record->batch) {}

  void run() {
    if (batch_.status == BatchStatus::kFinalizing) return finalize();
    look_back();
    if (batch_.attempts > kAttempts) return abandon();
    if (batch_.status == BatchStatus::kCancelling && batch_.in_progress_at == 0) {
      batch_.outcome = BatchStatus::kCancelled;
      return end();
    }
    publish();  // the attempt counts from here on
    std::vector<LineProblem> problems;
    auto index = BatchIndex::read(service_.store_.path(batch_.input_file_id), {}, &problems, kMaxBatchLines);
    if (index.ok() && index->lines() == 0)
      problems.push_back({0, "empty_file", "The file has no line with a request."});
    if (!problems.empty() || !index.ok()) {
      if (problems.empty()) problems.push_back({0, "unreadable_file", "The input file cannot be read any more."});
      batch_.errors = std::move(problems);
      batch_.outcome = BatchStatus::kFailed;
      return end();
    }
    batch_.total = index->lines();
    if (batch_.in_progress_at == 0) batch_.in_progress_at = now();
    if (batch_.status == BatchStatus::kValidating) batch_.status = BatchStatus::kInProgress;
    publish();
    answer(&*index);
    if (!left_) return finalize();
    batch_.attempts = 0;
    publish();
  }

 private:
  std::string output_path() const { return path("output"); }
  std::string error_path() const { return path("errors"); }
  std::string path(const char* kind) const {
    return service_.store_.batch_folder() + "/" + batch_.id + "." + kind + ".jsonl";
  }

  // Looks at what the last turn left. If it was interrupted, one of the open lines may have ended the server. They then
  // run one by one, which finds that line without losing other results each time.
  void look_back() {
    if (batch_.attempts > 1) careful_lines_ = service_.options_.max_open_lines;
    int64_t bytes = 0;
    for (const std::string& path : {output_path(), error_path()}) {
      std::error_code error;
      const auto size = fs::file_size(path, error);
      if (!error) bytes += static_cast<int64_t>(size);
    }
    if (bytes > batch_.result_bytes) batch_.attempts = 1;
    batch_.result_bytes = bytes;
  }

  // A cancellation may have come meanwhile.
  void take_over() {
    if (record_.batch.status != BatchStatus::kCancelling) return;
    batch_.cancelling_at = record_.batch.cancelling_at;
    if (batch_.status == BatchStatus::kInProgress) batch_.status = BatchStatus::kCancelling;
    if (batch_.status == BatchStatus::kFinalizing) batch_.outcome = BatchStatus::kCancelled;
  }
  void publish() {
    const std::lock_guard lock(service_.mutex_);
    take_over();
    record_.batch = batch_;
    service_.save(batch_);
  }
  bool cancelled() {
    const std::lock_guard lock(service_.mutex_);
    return record_.batch.status == BatchStatus::kCancelling;
  }
  bool expired() const { return now() >= batch_.expires_at; }

  Status recover(BatchIndex* index, ResultFile* results, bool failures) {
    auto cut = results->recover([&](int64_t number, std::string_view line) -> Status {
      const auto id = read_custom_id(line);
      if (!id.ok() || index->mark_done(*id) != BatchIndex::Mark::kMarked) {
        return data_loss("line " + std::to_string(number) + " is damaged");
      }
      ++(failures ? batch_.failed : batch_.completed);
      return {};
    });
    return cut.ok() ? Status() : Status(cut.error());
  }

  void answer(BatchIndex* index) {
    const std::string input = service_.store_.path(batch_.input_file_id);
    auto output = ResultFile::open(output_path(), input), errors = ResultFile::open(error_path(), input);
    Status status = output.ok() ? errors.ok() ? Status() : Status(errors.error()) : Status(output.error());
    batch_.completed = batch_.failed = 0;
    if (status.ok()) status = recover(index, &*output, false);
    if (status.ok()) status = recover(index, &*errors, true);
    if (!status.ok()) return give_up(status, "damaged_results", "The results so far cannot be read any more.");
    service_.log_.info("batch " + batch_.id + ": " + std::to_string(index->lines() - index->done()) + " of " +
                       std::to_string(index->lines()) + " lines to answer");
    BatchRun run(input, index, hooks(&*output, &*errors), {batch_.endpoint, kRetries, true});
    bool written_off = false;
    {
      const Wakeable wakeable(&service_, &record_, &run);
      status = run.run();
      written_off = status.ok() && !cancelled() && expired() && index->done() < index->lines();
      if (written_off) {
        status = run.write_off(
            {"batch_expired", "This request could not be executed before the completion window expired."});
      }
    }
    for (ResultFile* results : {&*output, &*errors}) {
      if (const Status synced = results->sync(); status.ok()) status = synced;
    }
    if (!status.ok()) {
      return give_up_writing(status);
    }
    left_ = index->done() < index->lines() && !cancelled();  // the server stops
    if (left_) return;
    finish(cancelled() ? BatchStatus::kCancelled : written_off ? BatchStatus::kExpired : BatchStatus::kCompleted);
  }

  // stop() and cancel() wake the run while this lives.
  class Wakeable {
   public:
    Wakeable(BatchService* service, Record* record, BatchRun* run) : service_(*service), record_(*record) { set(run); }
    ~Wakeable() { set(nullptr); }
    Wakeable(const Wakeable&) = delete;

   private:
    void set(BatchRun* run) {
      const std::lock_guard lock(service_.mutex_);
      record_.run = run;
    }
    BatchService& service_;
    Record& record_;
  };

  BatchRun::Hooks hooks(ResultFile* output, ResultFile* errors) {
    BatchRun::Hooks hooks;
    hooks.ask = [this](HttpRequest request, std::function<void()> wake) {
      request.client = batch_.client;
      return service_.ask_(request, batch_.owner, std::move(wake), &record_.given_up);
    };
    hooks.may_start = [this](size_t open) {
      const int share = std::max(1, service_.options_.max_open_lines / std::max(1, service_.running_.load()));
      return static_cast<int>(open) < (careful_lines_ > 0 ? 1 : share);
    };
    hooks.write = [this, output, errors](std::string line, bool failed) -> Status {
      const size_t bytes = line.size() + 1;
      room_ = service_.store_.reserve(batch_.owner, bytes);
      if (room_ != FileStore::Room::kThere) return data_loss("there is no room for files left");
      Status written = (failed ? errors : output)->append(std::move(line));
      if (!written.ok()) {
        service_.store_.release(batch_.owner, bytes);
        return written;
      }
      ++(failed ? batch_.failed : batch_.completed);
      has_new_result_ = true;
      --careful_lines_;
      return {};
    };
    hooks.beat = [this, output, errors](size_t) -> Status {
      {
        const std::lock_guard lock(service_.mutex_);
        record_.batch.completed = batch_.completed;
        record_.batch.failed = batch_.failed;
      }
      if (batch_.attempts > 1 && has_new_result_) {
        batch_.attempts = 1;
        publish();
        service_.changed_.notify_all();  // another batch's last attempt may begin
      }
      VOLLEY_RETURN_IF_ERROR(output->sync_if_due());
      return errors->sync_if_due();
    };
    hooks.stopped = [this] { return service_.stopping_ || expired() || cancelled(); };
    return hooks;
  }

  void give_up_writing(const Status& status) {
    switch (room_) {
      case FileStore::Room::kThere:
        return give_up(status, "storage_failed",
                       "The results could not be written: the server's disk is full or broken.");
      case FileStore::Room::kNoneForAll:
        return give_up(status, "storage_limit",
                       "The results took more room than the server has for files (--max-files-bytes).");
      case FileStore::Room::kLeftToOthers:
        return give_up(status, "storage_limit",
                       "The results took more room than is left for other API keys (--max-files-bytes): delete some.");
      case FileStore::Room::kNoneForOwner:
        return give_up(status, "storage_quota",
                       "The results took more room than an API key has for files (--files-quota-mb): delete some.");
    }
  }

  void give_up(const Status& status, const char* code, const char* message) {
    service_.log_.error("batch " + batch_.id + " failed: " + status.error().message);
    batch_.errors.push_back({0, code, message});
    finish(BatchStatus::kFailed);
  }

  // Fails a batch whose error would repeat, and could stop a runner or the server again. Results so far are kept.
  void abandon() {
    const std::string times = std::to_string(kAttempts) + " times without a new result";
    service_.log_.error("batch " + batch_.id + " failed: its work was interrupted " + times);
    batch_.errors.push_back({0, "internal_error", "The server ended or failed on this batch " + times + "."});
    finish(BatchStatus::kFailed);
    finalize();
  }

  // The ids are noted before the files move, so that after a kill between the two, the next start finds them.
  void finish(BatchStatus outcome) {
    batch_.outcome = outcome;
    batch_.status = BatchStatus::kFinalizing;
    batch_.finalizing_at = now();
    std::error_code error;
    if (fs::file_size(output_path(), error) > 0 && !error) batch_.output_file_id = "file-" + random_id();
    if (fs::file_size(error_path(), error) > 0 && !error) batch_.error_file_id = "file-" + random_id();
    publish();
  }

  void finalize() {
    move_results(output_path(), batch_.output_file_id, "_output.jsonl");
    move_results(error_path(), batch_.error_file_id, "_error.jsonl");
    end();
  }

  void move_results(const std::string& from, std::optional<std::string>& id, const char* suffix) {
    std::error_code error;
    if (!id) {
      fs::remove(from, error);
      return;
    }
    StoredFile about;
    about.id = *id;
    about.owner = batch_.owner;
    about.filename = batch_.id + suffix;
    about.purpose = "batch_output";
    about.client = batch_.client;
    const Status adopted = service_.store_.adopt(from, std::move(about));
    if (adopted.ok()) return;
    service_.log_.error("batch " + batch_.id + ": its results cannot be kept: " + adopted.error().message);
    batch_.errors.push_back(
        {0, "storage_failed", "The results could not be kept: the server's disk is full or broken."});
    batch_.outcome = BatchStatus::kFailed;
    id.reset();
  }

  void end() {
    batch_.status = batch_.outcome;
    batch_.over_at = now();
    publish();
    service_.log_.info("batch " + batch_.id + " " + std::string(batch_status_name(batch_.status)) + ": " +
                       std::to_string(batch_.completed) + " lines answered, " + std::to_string(batch_.failed) +
                       " failed");
  }

  BatchService& service_;
  Record& record_;
  Batch batch_;
  int careful_lines_ = 0;  // lines to run one by one
  bool has_new_result_ = false;
  FileStore::Room room_ = FileStore::Room::kThere;  // for the last line
  bool left_ = false;
};

BatchService::BatchService(FileStore& store, ServerLog log) : store_(store), log_(std::move(log)) {
  load();
}

BatchService::~BatchService() {
  stop();
  for (std::thread& runner : runners_) runner.join();
}

void BatchService::load() {
  std::error_code error;
  // by batch; only of unfinished ones, because others' files have moved
  std::vector<std::pair<std::string, size_t>> results;
  for (const auto& entry : fs::directory_iterator(store_.batch_folder(), error)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".jsonl") {
      const auto size = entry.file_size(error);
      if (!error) results.emplace_back(path.stem().stem(), size);
      continue;
    }
    if (path.extension() != ".json") continue;
    const auto text = read_file(path, kMaxBatchNoteBytes);
    auto batch = text.ok() ? read_batch_note(*text) : std::nullopt;
    if (!batch || batch->id != path.stem()) {
      log_.error("The batch " + path.string() + " cannot be read and is left alone.");
      continue;
    }
    next_sequence_ = std::max(next_sequence_, batch->sequence + 1);
    auto record = std::make_unique<Record>();
    record->batch = std::move(*batch);
    const std::string id = record->batch.id;
    records_.emplace(id, std::move(record));
  }
  for (const auto& [id, size] : results) {
    const auto record = records_.find(id);
    // A damaged note hides the owner, and "" would be an owner, too, on a server without keys.
    store_.count(record != records_.end() ? std::optional(record->second->batch.owner) : std::nullopt, size);
  }
}

void BatchService::start(Options options, Ask ask) {
  options_ = std::move(options);
  ask_ = std::move(ask);
  const size_t others = std::max<size_t>(options_.owners.size(), 1) - 1;
  for (size_t i = 0; i < std::min(kRunners + others, kMaxRunners); ++i) runners_.emplace_back([this] { loop(); });
}

void BatchService::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  for (const auto& [id, record] : records_) {
    record->given_up = true;
    if (record->run) record->run->wake();
  }
}

bool BatchService::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [this] { return runs_ == 0; });
}

void BatchService::loop() {
  std::unique_lock lock(mutex_);
  ++runs_;
  while (!stopping_) {
    Record* record = nullptr;
    try {
      record = next();
      if (record == nullptr) {
        changed_.wait(lock);
        continue;
      }
      ++record->batch.attempts;
      Turn turn(this, record);
      record->running = true;
      ++running_;
      lock.unlock();
      turn.run();
    } catch (const std::exception& error) {
      if (record != nullptr) log_.error("batch " + record->batch.id + " was interrupted: " + error.what());
      if (!lock.owns_lock()) lock.lock();
      changed_.wait_for(lock, kAfterInterruption, [this] { return stopping_.load(); });
    }
    if (!lock.owns_lock()) lock.lock();
    if (record == nullptr || !record->running) continue;
    --running_;
    record->running = false;
    changed_.notify_all();
  }
  --runs_;
  changed_.notify_all();
}

// Chooses the oldest batch, but prefers owners without a running one, so that no owner waits for another's batches.
// Last attempts run one by one: a batch that kills the server would also fail those beside it.
BatchService::Record* BatchService::next() {
  std::set<std::string> busy;
  bool last_attempt_runs = false;
  for (const auto& [id, record] : records_) {
    if (!record->running) continue;
    busy.insert(record->batch.owner);
    last_attempt_runs = last_attempt_runs || record->batch.attempts == kAttempts;
  }
  Record* best = nullptr;
  const auto rank = [&](const Record& record) {
    return std::pair(busy.contains(record.batch.owner), record.batch.sequence);
  };
  for (const auto& [id, record] : records_) {
    if (record->running || is_over(record->batch.status) || !options_.owners.contains(record->batch.owner)) continue;
    if (last_attempt_runs && record->batch.attempts == kAttempts - 1) continue;
    if (running_ >= kRunners && busy.contains(record->batch.owner)) continue;
    if (best == nullptr || rank(*record) < rank(*best)) best = record.get();
  }
  return best;
}

// A state that is not written is computed again at the next start.
void BatchService::save(const Batch& batch) const {
  const Status written = write_whole(note_path(batch.id), batch_note(batch));
  if (!written.ok()) log_.error("batch " + batch.id + ": its state cannot be kept: " + written.error().message);
}

// Forgets finished batches until this one has room; their files stay. The owner that keeps most goes first, its oldest
// batch first. Error: there is no room.
std::optional<ApiError> BatchService::make_room(const Batch& batch) {
  const size_t bytes = batch_bytes(batch), share = store_.fair_share();
  FairSpace places({.total = store_.limits().max_files, .share = share});
  FairSpace memory({.total = kMaxBatchRecordBytes, .share = share});
  std::map<std::string, std::map<int64_t, const Batch*>> over;  // by owner, the oldest first
  for (const auto& [id, record] : records_) {
    const Batch& kept = record->batch;
    places.take(kept.owner);
    memory.take(kept.owner, batch_bytes(kept));
    if (is_over(kept.status) && !record->running) over[kept.owner].emplace(kept.sequence, &kept);
  }
  const auto oldest = [&](const std::string& owner) -> std::optional<uint64_t> {
    const auto& its = over[owner];
    return its.empty() ? std::nullopt : std::optional(static_cast<uint64_t>(its.begin()->first));
  };
  std::vector<std::string> forgotten;
  for (const auto& [space, size] : {std::pair(&places, size_t{1}), std::pair(&memory, bytes)}) {
    for (FairSpace::Room room{}; (room = space->room(batch.owner, size)) != FairSpace::Room::kThere;) {
      const auto owner = space->who_makes_room(batch.owner, size, oldest);
      if (!owner && room == FairSpace::Room::kNoneForAll) {
        return api_error({ErrorCode::kResourceExhausted, "Too many batches are waiting. Try again when one is over."});
      }
      if (!owner) {
        return api_error({ErrorCode::kResourceExhausted,
                          "Too many batches of this API key are waiting: other keys have what room is left. Try again "
                          "when one is over."});
      }
      const Batch& first = *over[*owner].extract(over[*owner].begin()).mapped();
      places.give_back(*owner);
      memory.give_back(*owner, batch_bytes(first));
      forgotten.push_back(first.id);
    }
  }
  for (const std::string& id : forgotten) {
    std::error_code error;
    fs::remove(note_path(id), error);
    records_.erase(id);
  }
  return std::nullopt;
}

ApiResult<Batch> BatchService::create(const std::string& owner, const HttpRequest& request) {
  auto parsed = parse_batch(request.body);
  if (std::holds_alternative<ApiError>(parsed)) return parsed;
  Batch& batch = std::get<Batch>(parsed);
  const std::lock_guard lock(mutex_);
  // Holds the lock, like erase(), so that the file is not deleted before the batch counts as its reader.
  const auto file = store_.find(owner, batch.input_file_id);
  if (!file) {
    return invalid_field("input_file_id", "\"input_file_id\" names no file: upload one, POST /v1/files.");
  }
  batch.id = "batch_" + random_id();
  batch.owner = owner;
  batch.client = request.client;
  if (auto error = make_room(batch)) return *std::move(error);
  batch.sequence = next_sequence_++;
  if (!write_whole(note_path(batch.id), batch_note(batch)).ok()) {
    return http_error(503, "The batch cannot be kept: the server's disk is full or broken.");
  }
  auto record = std::make_unique<Record>();
  record->batch = batch;
  records_.emplace(batch.id, std::move(record));
  changed_.notify_all();
  return batch;
}

std::optional<Batch> BatchService::find(std::string_view owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end() || found->second->batch.owner != owner) return std::nullopt;
  return found->second->batch;
}

std::optional<Page<Batch>> BatchService::list(std::string_view owner, const PageQuery& query,
                                              std::string_view client) const {
  const std::lock_guard lock(mutex_);
  std::vector<const Batch*> batches;
  for (const auto& [id, record] : records_) {
    const Batch& batch = record->batch;
    if (batch.owner == owner && (client.empty() || batch.client == client)) batches.push_back(&batch);
  }
  return page_of(std::move(batches), query);
}

std::optional<ApiResult<Batch>> BatchService::cancel(std::string_view owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(id);
  if (found == records_.end() || found->second->batch.owner != owner) return std::nullopt;
  Record& record = *found->second;
  Batch& batch = record.batch;
  if (is_over(batch.status) || batch.status == BatchStatus::kFinalizing) {
    ApiError error = http_error(
        409, "The batch is " + std::string(batch_status_name(batch.status)) + " and cannot be cancelled any more.");
    error.code = "conflict";
    return ApiResult<Batch>(std::move(error));
  }
  if (batch.status != BatchStatus::kCancelling) {
    batch.status = BatchStatus::kCancelling;
    batch.cancelling_at = now();
    save(batch);
    record.given_up = true;
    if (record.run) record.run->wake();
    changed_.notify_all();
  }
  return ApiResult<Batch>(batch);
}

std::optional<std::string> BatchService::erase(const StoredFile& file) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, record] : records_) {
    if (record->batch.input_file_id == file.id && !is_over(record->batch.status)) return id;
  }
  store_.erase(file);
  return std::nullopt;
}

}  // namespace volley::serve
