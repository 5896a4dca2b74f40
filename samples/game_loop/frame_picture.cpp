// Two panels over the same frames, since the calls would be a line at the bottom of the first one.
#include "frame_picture.h"

#include <algorithm>

#include "frame_clock.h"

namespace game {
namespace {

constexpr double kWidth = 960, kHeight = 440, kLeft = 56, kRight = 16;

struct Panel {
  const char* title;
  double top, height;
  double most_ms;   // at its upper edge
  double step_ms;   // from one line of its grid to the next
  double limit_ms;  // a line across
  const char* limit;
  const char* color;
  double Frame::*value;

  double y(double ms) const { return top + height * (1 - std::clamp(ms / most_ms, 0.0, 1.0)); }
};

constexpr Panel kPanels[] = {
    {"frame done after, ms", 44, 200, 20, 5, kPeriodMs, "the next one is due", "#2a6f97", &Frame::done_ms},
    {"of it in the library's calls, ms", 294, 100, 2.5, 1, kMostCallsMs, "most allowed", "#c1551b",
     &Frame::calls_ms}};

double x_of(size_t frame, size_t frames) {
  return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(frame) /
                     static_cast<double>(std::max<size_t>(frames, 2) - 1);
}

void write_text(std::FILE* file, double x, double y, const char* anchor, const char* text) {
  std::fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

// A shade behind the frames beside which the character was at work.
void write_shades(const std::vector<Frame>& frames, const Panel& panel, std::FILE* file) {
  for (size_t from = 0, to; from < frames.size(); from = to) {
    for (to = from; to < frames.size() && frames[to].doing == frames[from].doing;) ++to;
    if (frames[from].doing == Doing::kNothing) continue;
    const double x = x_of(from, frames.size());
    std::fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
                 panel.top, std::max(x_of(std::min(to, frames.size() - 1), frames.size()) - x, 1.0),
                 panel.height, frames[from].doing == Doing::kReading ? "#e3e8ec" : "#f6e3c5");
  }
}

void write_panel(const std::vector<Frame>& frames, const Panel& panel, std::FILE* file) {
  write_shades(frames, panel, file);
  write_text(file, kLeft, panel.top - 8, "start", panel.title);
  for (int line = 0; line * panel.step_ms <= panel.most_ms; ++line) {
    const double ms = line * panel.step_ms;
    char label[16];
    std::snprintf(label, sizeof label, "%g", ms);
    write_text(file, kLeft - 8, panel.y(ms) + 4, "end", label);
    std::fprintf(file, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ccc\"/>\n", kLeft, panel.y(ms),
                 kWidth - kRight);
  }
  std::fprintf(file, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#b00020\" stroke-dasharray=\"6 4\"/>\n", kLeft,
               panel.y(panel.limit_ms), kWidth - kRight);
  write_text(file, kWidth - kRight - 4, panel.y(panel.limit_ms) - 5, "end", panel.limit);

  std::fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" points=\"", panel.color);
  for (size_t i = 0; i < frames.size(); ++i)
    std::fprintf(file, "%.1f,%.1f ", x_of(i, frames.size()), panel.y(frames[i].*panel.value));
  std::fputs("\"/>\n", file);
  for (size_t i = 0; i < frames.size(); ++i) {  // what is beyond the panel is at its edge, and marked
    const double ms = frames[i].*panel.value;
    if (ms > panel.limit_ms)
      std::fprintf(file, "<circle class=\"over\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#b00020\"/>\n",
                   x_of(i, frames.size()), panel.y(ms));
  }
}

}  // namespace

void write_picture(const std::vector<Frame>& frames, std::FILE* file) {
  std::fprintf(file,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
               "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
               "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
               kWidth, kHeight, kWidth, kHeight);
  for (const Panel& panel : kPanels) write_panel(frames, panel, file);
  char frame_count[64];
  std::snprintf(frame_count, sizeof frame_count, "%zu frames, 60 a second", frames.size());
  write_text(file, kLeft, kHeight - 16, "start", frame_count);
  write_text(file, kWidth - kRight, kHeight - 16, "end",
             "grey: the character reads the document; yellow: it answers a question");
  std::fputs("</svg>\n", file);
}

}  // namespace game
