// Runs a file of requests as a stream: the window below bounds the memory for any length of the file.
#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "apps/client/request_pool.h"
#include "apps/generate/answer_parts.h"
#include "apps/generate/generate.h"
#include "apps/generate/request_line.h"
#include "apps/generate/result_line.h"

namespace volley::apps {
namespace {

constexpr int64_t kReportedErrors = 20;  // on stderr; the output has all errors
constexpr size_t kReportedFields = 20;   // names of ignored fields

class FileRun {
 public:
  FileRun(Engine& engine, const GenerateCommand& command, GenerateFiles* files, InterruptWatch* interrupt,
          Console* console)
      : engine_(engine),
        command_(command),
        input_(*files->input),
        output_(*files->output),
        interrupt_(*interrupt),
        console_(*console),
        requests_(engine),
        pool_(engine),
        scope_(interrupt, [this] { pool_.wake(); }),
        // At most this many answers wait in memory for an earlier one that takes longer.
        window_(std::max<int64_t>(1024, 4 * command.concurrency)) {}

  int run() {
    while (failure_.ok() && !interrupt_.interrupted()) {
      const bool blocked = fill();
      const bool drained = input_ended_ && pool_.open() == 0;
      show_progress();
      collect(std::chrono::milliseconds(drained ? 0 : blocked ? 20 : 200));
      if (drained) break;
    }
    pool_.cancel_all();
    for (bool drained = false; !drained;) {
      drained = pool_.open() == 0;
      collect(std::chrono::milliseconds(drained ? 0 : 100));
    }
    if (failure_.ok() && !interrupt_.interrupted()) failure_ = output_.finish();
    return finish_run(pool_.summary(), command_.json, failure_, interrupt_, &console_);
  }

 private:
  // Starts requests up to the concurrency. True: the input is a pipe with a slower writer.
  bool fill() {
    while (failure_.ok() && !input_ended_ && !interrupt_.interrupted() && pool_.open() < command_.concurrency &&
           next_ - output_.next() < window_) {
      LineReader::Line line;
      const auto state = input_.next(&line, pool_.open() == 0 ? 100 : 0);
      if (!state.ok()) {
        failure_ = state.error();
      } else if (*state == LineReader::State::kNotYet) {
        return true;
      } else if (*state == LineReader::State::kEnd) {
        input_ended_ = true;
      } else {
        start(line);
      }
    }
    return false;
  }

  void start(const LineReader::Line& line) {
    const bool blank = line.text.find_first_not_of(" \t\r") == std::string::npos;
    if (blank && !line.too_long) {
      finished_bytes_ += line.bytes;
      return;
    }
    const int64_t index = next_++;
    RequestLine parsed;
    if (line.too_long) {
      parsed.prompt = invalid_argument("The line is longer than " + std::to_string(kMaxLineBytes >> 20) +
                                       " MiB: split the request.");
    } else {
      parsed = parse_request_line(line.text);
    }
    for (const std::string& field : parsed.ignored) {
      if (ignored_.size() < kReportedFields && ignored_.insert(field).second) {
        console_.note(
            "line " + std::to_string(line.number) + ": \"" + field +
            "\" is ignored, here and in later lines: requests have no such field, or there is a more exact prompt.");
      }
    }
    const std::string id = parsed.id_json.value_or(std::to_string(line.number));
    auto request = parsed.prompt.ok() ? requests_.build(*parsed.prompt, command_.settings, parsed.settings)
                                      : Result<ChatRequests::Built>(parsed.prompt.error());
    if (!request.ok()) pool_.count_refused();
    const Status started = request.ok() ? pool_.submit(index, std::move(request->request)) : Status(request.error());
    if (started.ok()) {
      open_.emplace(index, OpenLine{id, line.number, line.bytes, std::move(request->parts)});
    } else {
      report(line.number, started.error());
      write(index, error_line(id, started.error()));
      finished_bytes_ += line.bytes;
    }
  }

  void collect(std::chrono::milliseconds limit) {
    RequestPool::News news = pool_.wait(limit);
    for (Completion& completion : news.done) {
      const auto line = open_.extract(completion.index);
      if (line.mapped().parts) separate(*line.mapped().parts, completion);
      if (completion.finish.error) report(line.mapped().number, *completion.finish.error);
      write(completion.index, result_line(line.mapped().id_json, completion));
      finished_bytes_ += line.mapped().bytes;
    }
  }

  // Shows the answered lines' share of the file; the read position says little. A pipe's length is unknown.
  void show_progress() {
    const auto open = static_cast<int64_t>(open_.size());
    const double size = static_cast<double>(input_.size());
    console_.progress(std::to_string(next_ - open) + " done, " + std::to_string(open) + " running",
                      size > 0 ? static_cast<double>(finished_bytes_) / size : -1);
  }

  void write(int64_t index, std::string line) {
    if (Status written = output_.put(index, std::move(line)); !written.ok() && failure_.ok()) failure_ = written;
  }

  void report(int64_t number, const Error& error) {
    if (++reported_ <= kReportedErrors) console_.error("line " + std::to_string(number) + ": " + error.message);
    if (reported_ == kReportedErrors) console_.note("Further errors are in the output only.");
  }

  struct OpenLine {
    std::string id_json;
    int64_t number, bytes;
    std::optional<serve::OutputParser::Options> parts;
  };

  Engine& engine_;
  const GenerateCommand& command_;
  LineReader& input_;
  OrderedOutput& output_;
  const InterruptWatch& interrupt_;
  Console& console_;
  ChatRequests requests_;
  RequestPool pool_;
  InterruptScope scope_;
  const int64_t window_;
  bool input_ended_ = false;
  int64_t next_ = 0;  // index of the next request
  int64_t reported_ = 0;
  int64_t finished_bytes_ = 0;     // bytes of the answered input lines
  std::set<std::string> ignored_;  // already reported as ignored
  std::unordered_map<int64_t, OpenLine> open_;
  Status failure_;  // a failed read or write, which ends the run
};

}  // namespace

int generate_file(Engine& engine, const GenerateCommand& command, GenerateFiles* files, InterruptWatch* interrupt,
                  Console* console) {
  return FileRun(engine, command, files, interrupt, console).run();
}

}  // namespace volley::apps
