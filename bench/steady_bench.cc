// How steady streams are while long prompts or pictures arrive: the gaps between a stream's chunks without prompts, and
// with one prompt a second at each target step time, and what the prompts get. A picture's time begins with the bytes
// of its file; a second turn sends them again. Random weights and simulated acceptance: the shapes alone matter. One
// JSON object a line on stdout.
#include <volley/engine.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using volley::Engine;

struct Settings {
  std::string model, draft, device = "auto", picture;
  int streams = 32, stream_prompt = 128, prompts = 6, prompt_tokens = 32'000, threads = 0;
  double interval_s = 1, quiet_s = 5, acceptance = 0.8553;
  std::vector<int> targets = {0, 15, 25, 50, 100};
};

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// When each stream had an event. Sinks run on the engine's thread, the rest on this one.
class Gaps {
 public:
  explicit Gaps(int streams) : last_(streams) {}
  void event(int stream) {
    const Clock::time_point now = Clock::now();
    std::lock_guard lock(mutex_);
    if (last_[stream] != Clock::time_point()) gaps_.push_back(seconds(now - last_[stream]));
    last_[stream] = now;
  }
  std::vector<double> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Clock::time_point> last_;
  std::vector<double> gaps_;
};

class Measurement {
 public:
  Measurement(Engine& engine, const Settings& settings) : engine_(engine), settings_(settings) {}

  // target_ms < 0: no prompts.
  void run(int target_ms) {
    const bool prompts = target_ms >= 0;
    engine_.set_target_step_ms(std::max(target_ms, 0));
    engine_.drop_prefix_cache();
    Gaps gaps(settings_.streams);
    std::atomic<int> ended = 0;
    std::vector<volley::RequestId> streams;
    for (int i = 0; i < settings_.streams; ++i) {
      const auto sink = [&gaps, &ended, i](const volley::Event& event) {
        event.finish ? void(++ended) : gaps.event(i);
      };
      streams.push_back(submit(settings_.stream_prompt, engine_.info().max_model_len - settings_.stream_prompt, sink));
    }
    sleep(2);  // all of them decode, and the policy knows what that costs
    gaps.take();
    const Clock::time_point begin = Clock::now();
    double waits = 0;
    std::vector<double> first, second, reading;
    const volley::EngineStats before = engine_.stats();
    if (prompts && !settings_.picture.empty()) {
      show_pictures(begin, first, second, reading);
    } else if (prompts) {
      waits = send_prompts(begin);
    } else {
      sleep(settings_.quiet_s);
    }
    const double elapsed = seconds(Clock::now() - begin);
    const volley::EngineStats after = engine_.stats();
    const double tokens = static_cast<double>(after.generated_tokens - before.generated_tokens);
    std::vector<double> seen = gaps.take();
    for (const volley::RequestId id : streams) engine_.cancel(id);
    while (ended < settings_.streams) sleep(0.01);
    std::ranges::sort(seen);
    const auto at = [&](double share) {
      return seen.empty() ? 0.0 : seen[static_cast<size_t>(share * (seen.size() - 1))];
    };
    nlohmann::json line = {{"target_ms", prompts ? nlohmann::json(target_ms) : nlohmann::json()},
                           {"streams", settings_.streams},
                           {"gap_p50_ms", at(0.5) * 1e3},
                           {"gap_p99_ms", at(0.99) * 1e3},
                           {"gap_max_ms", at(1) * 1e3},
                           {"tokens_per_s", tokens / elapsed}};
    if (prompts && !first.empty()) {
      line["first_turn_ms"] = first;
      line["second_turn_ms"] = second;
      line["reading_ms"] = reading;
      line["tower_mean_ms"] =
          (after.vision_s - before.vision_s) / static_cast<double>(after.pictures - before.pictures) * 1e3;
    } else if (prompts) {
      line["prompt_tokens_per_s"] = static_cast<double>(settings_.prompts) * settings_.prompt_tokens / elapsed;
      line["prompt_wait_mean_s"] = waits / settings_.prompts;
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

 private:
  static void sleep(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

  volley::RequestId submit(int prompt, int max_tokens, volley::EventSink sink) {
    volley::GenerateRequest request;
    add_text(request, prompt);
    return submit(std::move(request), max_tokens, std::move(sink));
  }

  void add_text(volley::GenerateRequest& request, int tokens) {
    std::uniform_int_distribution<volley::TokenId> token(0, engine_.info().vocab_size - 1);
    for (int i = 0; i < tokens; ++i) request.prompt.push_back(token(random_));
  }

  volley::RequestId submit(volley::GenerateRequest request, int max_tokens, volley::EventSink sink) {
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.seed = 1;
    if (!settings_.draft.empty()) {
      request.simulate_acceptance =
          volley::SimulatedAcceptance{.phases = {{.from_step = 0, .p = settings_.acceptance}}};
    }
    auto id = engine_.submit(std::move(request), std::move(sink));
    if (!id.ok()) {
      std::fprintf(stderr, "%s\n", id.error().message.c_str());
      std::exit(1);
    }
    return *id;
  }

  // One every interval; until the last has its token. Returns the sum of their times to it.
  double send_prompts(Clock::time_point begin) {
    std::atomic<int> ended = 0;
    std::atomic<double> waits = 0;
    for (int i = 0; i < settings_.prompts; ++i) {
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(i * settings_.interval_s)));
      submit(settings_.prompt_tokens, 1, [&](const volley::Event& event) {
        if (!event.finish) return;
        waits = waits + event.finish->usage.total_s;
        ++ended;
      });
    }
    while (ended < settings_.prompts) sleep(0.005);
    return waits;
  }

  // One every interval: a picture that no earlier one equals between texts, then a second turn about it. Milliseconds
  // from the file's bytes to the token, and of them until the first turn's file was read.
  void show_pictures(Clock::time_point begin, std::vector<double>& first, std::vector<double>& second,
                     std::vector<double>& reading) {
    std::ifstream in(settings_.picture, std::ios::binary);
    std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t size = file.size();
    for (int i = 0; i < settings_.prompts; ++i) {
      std::this_thread::sleep_until(
          begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(i * settings_.interval_s)));
      volley::GenerateRequest talk;
      add_text(talk, 32);
      ++shown_;
      // Bytes behind the picture's end make another file of it, and those of a pixel another picture.
      file.resize(size);
      file.append(reinterpret_cast<const char*>(&shown_), sizeof(shown_));
      for (std::vector<double>* times : {&first, &second}) {
        const Clock::time_point sent = Clock::now();
        auto picture = engine_.read_picture(file, true, {}, nullptr);
        if (!picture.ok()) {
          std::fprintf(stderr, "%s: %s\n", settings_.picture.c_str(), picture.error().message.c_str());
          std::exit(1);
        }
        const Clock::time_point read = Clock::now();
        if (times == &first) reading.push_back(seconds(read - sent) * 1e3);
        std::vector<uint8_t> rgb = *picture->rgb;
        for (int byte = 0; byte < 4; ++byte) rgb[static_cast<size_t>(byte)] = static_cast<uint8_t>(shown_ >> 8 * byte);
        picture->rgb = std::make_shared<const std::vector<uint8_t>>(std::move(rgb));
        const Clock::duration changing = Clock::now() - read;
        picture->begin = 32;
        const int side = engine_.info().pictures->token_side();
        if (times == &first) {
          talk.prompt.insert(talk.prompt.end(), static_cast<size_t>(picture->width / side * (picture->height / side)),
                             engine_.info().pictures->token);
        }
        talk.pictures = {*picture};
        add_text(talk, 32);
        const auto answer = std::make_shared<std::promise<std::pair<Clock::time_point, volley::TokenId>>>();
        submit(talk, 1, [answer, token = 0](const volley::Event& event) mutable {
          if (!event.tokens.empty()) token = event.tokens.front();
          if (event.finish) answer->set_value({Clock::now(), token});
        });
        const auto [at, said] = answer->get_future().get();
        times->push_back(seconds(at - sent - changing) * 1e3);
        talk.prompt.push_back(said);
      }
    }
  }

  Engine& engine_;
  const Settings& settings_;
  uint32_t shown_ = 0;  // pictures
  std::mt19937 random_{7};
};

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app("Gaps between a stream's chunks while long prompts arrive");
  app.add_option("--model", s.model)->required();
  app.add_option("--draft", s.draft, "none: plain decoding");
  app.add_option("--device", s.device);
  app.add_option("--threads", s.threads);
  app.add_option("--streams", s.streams);
  app.add_option("--prompts", s.prompts);
  app.add_option("--picture", s.picture, "a file: prompts show it instead of long texts");
  app.add_option("--prompt-tokens", s.prompt_tokens);
  app.add_option("--interval", s.interval_s, "seconds between prompts");
  app.add_option("--quiet", s.quiet_s, "seconds without prompts");
  app.add_option("--simulate-acceptance", s.acceptance);
  app.add_option("--targets", s.targets, "milliseconds; 0: no target")->delimiter(',');
  CLI11_PARSE(app, argc, argv);

  volley::EngineOptions options;
  options.model_dir = s.model;
  options.draft_dir = s.draft;
  options.device = s.device;
  options.threads = s.threads;
  options.dummy_weights = 1;
  options.skip_tokenizer = true;
  if (s.draft.empty()) options.speculation = volley::Speculation::kOff;
  auto engine = Engine::create(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.error().message.c_str());
    return 1;
  }
  Measurement measurement(**engine, s);
  measurement.run(-1);
  for (const int target : s.targets) measurement.run(target);
  measurement.run(-1);
  return 0;
}
