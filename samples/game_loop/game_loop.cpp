// A game at 60 frames a second in which a character has read a long lore document and answers questions about it.
// The frame's thread makes only calls that do not wait: it submits a task, and looks once a frame what has come of
// it. The reading and writing is done on the runtime's threads, which stand back behind it (wi_runtime_params.nice).
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <stdexcept>

#include "character.h"
#include "frame_clock.h"
#include "frame_picture.h"
#include "world.h"

namespace {

using namespace game;

struct Options {
  std::string model, document, picture = "game_loop.svg";
  std::vector<std::string> questions;
  int32_t threads = 0, nice = 19;
};

constexpr const char* kUsage =
    "game_loop: 60 frames a second, and a character that answers questions about a long document\n"
    "  --model FILE     required: GGUF file, or folder with safetensors, with a chat template\n"
    "  --document FILE  required: what the character has read; it does so while the game runs\n"
    "  --question TEXT  required, any number of times: asked one after the other\n"
    "  --picture FILE   the time of every frame, as SVG (game_loop.svg)\n"
    "  --nice N         how far the runtime's threads stand back behind the frame's, 0 to 19 (19)\n"
    "  --threads N      of the runtime (default: every core this process may use)\n"
    "The last line says how long the library's calls took of the frames, and how many frames were missed.\n"
    "Example: game_loop --model m.gguf --document book.txt --question 'Who wrote the letter?'\n";

constexpr int kQuietFrames = 60;    // before the first and after the last question, to compare with
constexpr int kFramesBetween = 10;  // an answer is read for so long before the next question

// What happens in the game, a frame at a time: the character reads, and is asked one thing after the other.
class Story {
 public:
  Story(Character* character, const std::vector<std::string>& questions)
      : character_(character), questions_(questions) {}

  // False: it is over.
  bool advance() {
    character_->look();
    if (wait_ > 0) return --wait_ > 0 || asked_ < questions_.size() || character_->busy();
    if (character_->busy()) return true;
    if (!read_) {
      character_->read();
      read_ = true;
    } else if (answering_) {
      answers_.push_back(character_->answer());
      answering_ = false;
      wait_ = asked_ < questions_.size() ? kFramesBetween : kQuietFrames;
    } else {
      character_->ask(questions_[asked_++]);
      answering_ = true;
    }
    return true;
  }
  Doing doing() const {
    if (!character_->busy()) return Doing::kNothing;
    return answering_ ? Doing::kAnswering : Doing::kReading;
  }
  const std::vector<std::string>& answers() const { return answers_; }

 private:
  Character* character_;
  const std::vector<std::string>& questions_;
  std::vector<std::string> answers_;
  size_t asked_ = 0;
  int wait_ = kQuietFrames;
  bool read_ = false, answering_ = false;
};

std::vector<Frame> play(World* world, Story* story) {
  std::vector<Frame> frames;
  for (FrameClock clock; !interrupted();) {
    clock.wait_for_frame();
    world->step();
    Frame frame;
    const CallClock calls;
    const bool goes_on = story->advance();
    frame.calls_ms = calls.own_ms();
    frame.calls_passed_ms = calls.passed_ms();
    frame.waited = calls.waited();
    frame.done_ms = clock.since_due_ms();
    frame.doing = story->doing();
    frames.push_back(frame);
    if (!goes_on) break;
  }
  return frames;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

// A frame is missed for the calls if all else had left them their share of it.
void print_figures(const std::vector<Frame>& frames) {
  std::vector<double> calls, others, done;
  int missed = 0, missed_for_calls = 0, waited = 0;
  for (const Frame& frame : frames) {
    calls.push_back(frame.calls_ms);
    others.push_back(frame.calls_passed_ms - frame.calls_ms);
    done.push_back(frame.done_ms);
    missed += frame.done_ms > kPeriodMs;
    missed_for_calls +=
        frame.done_ms > kPeriodMs && frame.done_ms - frame.calls_ms <= kPeriodMs - kMostCallsMs;
    waited += frame.waited;
  }
  std::printf(
      "a frame was done after p50 %.2f ms, p99 %.2f ms, max %.2f ms; the next one is due after %.2f ms\n",
      percentile(done, 0.5), percentile(done, 0.99), percentile(done, 1), kPeriodMs);
  std::printf("calls waited in %d frames; other programs had the core in them for up to %.3f ms\n", waited,
              percentile(others, 1));
  std::printf(
      "frames %zu, in the library's calls p50 %.3f ms, p99 %.3f ms, max %.3f ms, missed %d, for the calls "
      "%d\n",
      frames.size(), percentile(calls, 0.5), percentile(calls, 0.99), percentile(calls, 1), missed,
      missed_for_calls);
}

void run(int argc, char** argv) {
  Options options;
  sample::CommandLine line(kUsage);
  line.text("--model", &options.model)
      .text("--document", &options.document)
      .text("--picture", &options.picture);
  line.each("--question", [&](const std::string& text) { options.questions.push_back(text); });
  line.integer("--threads", &options.threads, 0, 1024).integer("--nice", &options.nice, 0, 19);
  if (!line.parse(argc, argv)) return;
  if (options.model.empty()) throw std::runtime_error("--model FILE is missing (--help lists the options)");
  if (options.document.empty())
    throw std::runtime_error("--document FILE is missing (--help lists the options)");
  if (options.questions.empty())
    throw std::runtime_error("--question TEXT is missing (--help lists the options)");
  sample::OutputFile picture(options.picture);  // before anything that takes long

  // While the game loads: the model, and the document as tokens.
  Character character(options.model, options.threads, options.nice, sample::read_file(options.document));
  World world(kPhysicsMs);
  Story story(&character, options.questions);
  catch_interrupt();
  const std::vector<Frame> frames = play(&world, &story);

  for (size_t i = 0; i < story.answers().size(); ++i)
    std::printf("%s\n  %s\n", options.questions[i].c_str(), story.answers()[i].c_str());
  write_picture(frames, picture.get());
  picture.close();
  print_figures(frames);
  if (interrupted()) throw std::runtime_error("interrupted");
}

}  // namespace

int main(int argc, char** argv) {
  return sample::run_main("game_loop", [&] { run(argc, argv); });
}
