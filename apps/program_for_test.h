// `volley` as a user starts it, and files for its tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "apps/process_for_test.h"

namespace volley::apps {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Words with spaces between them, and `more` of which each is one word.
inline std::vector<std::string> words(const std::string& text, const std::vector<std::string>& more = {}) {
  std::istringstream stream(text);
  std::vector<std::string> all{std::istream_iterator<std::string>(stream), {}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A run of the program with its output in files, so that no full pipe can block it.
class Program {
 public:
  // `standard_output`: a file that replaces it; empty: closed.
  explicit Program(const std::vector<std::string>& arguments, std::optional<std::string> standard_output = {}) {
    static int runs = 0;
    base_ = (fs::temp_directory_path() / ("volley_cli_" + std::to_string(getpid()) + "_" + std::to_string(runs++)))
                .string();
    pid_ = fork();
    if (pid_ == 0) {
      redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
      redirect(STDOUT_FILENO, standard_output.value_or("").empty() ? base_ + ".out" : *standard_output,
               O_WRONLY | O_CREAT | O_TRUNC);
      redirect(STDERR_FILENO, base_ + ".err", O_WRONLY | O_CREAT | O_TRUNC);
      if (standard_output && standard_output->empty()) close(STDOUT_FILENO);
      execute(VOLLEY_PROGRAM, arguments);
    }
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fs::remove(base_ + ".out");
    fs::remove(base_ + ".err");
  }

  int status() { return status_of(pid_); }
  void signal(int number) const { kill(pid_, number); }
  // Waits until stdout holds `text`, at most 300 s.
  bool wait_for_output(const std::string& text) const {
    for (int i = 0; i < 30'000; ++i) {
      if (out().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::string out() const { return read(base_ + ".out"); }
  std::string finished_out() {
    EXPECT_EQ(status(), 0) << err();
    return out();
  }
  std::string err() const { return read(base_ + ".err"); }
  // REQUIRES: status().
  Json last_json() const {
    EXPECT_EQ(pid_, -1);
    const std::string text = out();
    const size_t end = text.find_last_not_of('\n');
    return Json::parse(text.substr(text.rfind('\n', end) + 1, std::string::npos));
  }

 private:
  static void redirect(int fd, const std::string& path, int flags) {
    const int opened = open(path.c_str(), flags, 0600);
    if (opened < 0 || dup2(opened, fd) < 0) _exit(126);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string base_;
  pid_t pid_ = -1;  // kept after the end
};

class TempFile {
 public:
  explicit TempFile(const std::string& name, const std::string& content = "")
      : path_((fs::temp_directory_path() / (std::to_string(getpid()) + "_" + name)).string()) {
    std::ofstream(path_) << content;
  }
  ~TempFile() { fs::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Checks that stderr is one sentence: one line that begins with the program's name.
inline void expect_one_error(const Program& program) {
  const std::string text = program.err();
  EXPECT_TRUE(text.starts_with("volley: ")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

// A model folder with the pocket's files, except those that a test replaces.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name)
      : path_(fs::temp_directory_path() / ("volley_" + std::to_string(getpid()) + "_" + name)) {
    fs::create_directories(path_);
    for (const auto& file : fs::directory_iterator("models/" + name)) {
      fs::create_symlink(fs::absolute(file.path()), path_ / file.path().filename());
    }
  }
  ~ModelCopy() { fs::remove_all(path_); }
  fs::path operator/(const std::string& file) const { return path_ / file; }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

}  // namespace volley::apps
