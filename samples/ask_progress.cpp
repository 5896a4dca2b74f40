// The progress bar of wi_ask.
#include "ask_progress.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <unistd.h>

#include "ask_report.h"

namespace sample {
namespace {

constexpr int kBarWidth = 30;
constexpr std::chrono::milliseconds kRedrawAfter(50);

std::string remaining_time(double seconds);

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

int32_t Progress::on_progress(void* user, uint64_t done, uint64_t total) {
  static_cast<Progress*>(user)->show(done, total);
  return 0;
}

void Progress::show(uint64_t done, uint64_t total) {
  auto now = Clock::now();
  if (!terminal_ || total == 0 || (drawn_ && done < total && now - last_drawn_ < kRedrawAfter)) return;
  drawn_ = true;
  last_drawn_ = now;

  double seconds = std::chrono::duration<double>(now - start_).count();
  double tokens_per_second = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  double left = tokens_per_second > 0 ? static_cast<double>(total - done) / tokens_per_second : 0;
  std::string bar(kBarWidth * done / total, '#');
  bar.resize(kBarWidth, '.');
  std::fprintf(stderr, "\r\033[K[%s] %3d %%  %s of %s tokens", bar.c_str(),
               static_cast<int>(100 * done / total), with_thousands(done).c_str(),
               with_thousands(total).c_str());
  if (done > 0) {
    std::fprintf(stderr, "  %s tokens/s  %s left",
                 with_thousands(static_cast<uint64_t>(tokens_per_second)).c_str(),
                 remaining_time(left).c_str());
  }
  std::fflush(stderr);
}

namespace {

std::string remaining_time(double seconds) {
  long whole = std::lround(seconds);
  char text[32];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%ld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%ld min %02ld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
  }
  return text;
}

}  // namespace
}  // namespace sample
