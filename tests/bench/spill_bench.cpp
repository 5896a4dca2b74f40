// Reads of the slow tier as a decode step makes them: batches of short pieces from all over a file, by the
// kernel's ring and by threads, past the page cache. One JSON object per line; every batch's content is
// checked, outside the times. What is measured is the disk under the folder: one that the tier would have.
//   spill_bench [--folder PATH] [--file-mb N] [--request N[,N…]] [--in-flight N[,N…]] [--threads N[,N…]]
//               [--step N] [--seconds X] [--direct 0|1]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/buffer/spill_reader.h"
#include "src/error.h"
#include "tests/bench/help.h"

using namespace wi;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string folder = "/tmp";
  uint64_t file_bytes = uint64_t{1} << 30;
  std::vector<uint64_t> request_bytes = {4096, 8192}, in_flight = {64, 256}, threads = {4, 16};
  uint64_t step = 256;  // what pieces' offsets are multiples of: a key of 128 halves
  double seconds = 3;   // of each measurement
  bool direct = true;
};
Options parse(int count, char** words);

// What is at a place of the file, so that any piece can be checked.
uint64_t word_at(uint64_t offset) { return (offset + 1) * 0x9e3779b97f4a7c15; }

SpillExtent fill(SpillFile& file, uint64_t bytes) {
  SpillExtent extent = file.reserve(bytes, "the benchmark");
  std::vector<uint64_t> words((size_t{4} << 20) / 8);
  for (uint64_t at = 0; at < bytes; at += words.size() * 8) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = word_at(at + i * 8);
    file.write(extent, at, words.data(), std::min<uint64_t>(bytes - at, words.size() * 8));
  }
  return extent;
}

void check_batch(const std::vector<ReadRequest>& requests) {
  for (const ReadRequest& request : requests)
    for (uint64_t at = 0; at < request.bytes; at += 8) {
      uint64_t word;
      std::memcpy(&word, static_cast<const char*>(request.to) + at, 8);
      check(word == word_at(request.offset + at), WI_E_INTERNAL, "wrong content at byte ",
            request.offset + at);
    }
}

void measure(SpillFile& file, SpillReader& reader, const SpillExtent& extent, const std::string& way,
             uint64_t bytes, uint64_t in_flight, const Options& options) {
  std::mt19937_64 random(in_flight * bytes);
  std::vector<std::byte> memory(in_flight * bytes);
  std::vector<ReadRequest> requests(in_flight);
  std::vector<double> times;
  const uint64_t places = (extent.bytes() - bytes) / options.step + 1;
  const SpillStats before = file.stats();
  double sum = 0;
  for (int batch = 0; sum < options.seconds || batch < 20; ++batch) {
    for (uint64_t i = 0; i < in_flight; ++i)
      requests[i] = {&extent, random() % places * options.step, bytes, memory.data() + i * bytes};
    const Clock::time_point start = Clock::now();
    reader.read(requests);
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    sum += times.back();
    check_batch(requests);
  }
  const SpillStats after = file.stats();
  std::sort(times.begin(), times.end());
  const double count = static_cast<double>(times.size() * in_flight);
  const auto read_bytes = static_cast<double>(after.read_bytes - before.read_bytes);
  const auto at = [&](double share) {
    return 1e6 * times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf(
      "{\"way\": \"%s\", \"direct\": %s, \"request_bytes\": %llu, \"in_flight\": %llu, \"batches\": %zu, "
      "\"requests_per_s\": %.0f, \"mb_per_s\": %.1f, \"disk_mb_per_s\": %.1f, \"p50_us\": %.0f, "
      "\"p99_us\": %.0f}\n",
      way.c_str(), file.direct() ? "true" : "false", static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(in_flight), times.size(), count / sum,
      count * static_cast<double>(bytes) / sum / 1e6, read_bytes / sum / 1e6, at(0.5), at(0.99));
  std::fflush(stdout);
}

void bench(const SpillOptions& spill, const Options& options) {
  const auto file = SpillFile::open(options.folder, SpillFile::kUnlimited,
                                    HostPool::create(HostPool::kUnlimited, true), spill);
  const SpillExtent extent = fill(*file, options.file_bytes);
  SpillReader reader(file);
  std::string way = reader.way();
  if (way == "threads") way += " " + std::to_string(spill.threads);
  for (const uint64_t bytes : options.request_bytes)
    for (const uint64_t in_flight : options.in_flight)
      measure(*file, reader, extent, way, bytes, in_flight, options);
}

}  // namespace

constexpr const char* kUsage =
    "spill_bench: batches of short reads from a spill file, as JSON lines\n"
    "  --folder PATH       of the file; default: /tmp\n"
    "  --file-mb N         default: 1024\n"
    "  --request N[,N…]    bytes; default: 4096,8192\n"
    "  --in-flight N[,N…]  requests of a batch; default: 64,256\n"
    "  --threads N[,N…]    beside the ring; default: 4,16\n"
    "  --step N            what offsets are multiples of; default: 256\n"
    "  --seconds X         of each measurement; default: 3\n"
    "  --direct 0|1        0: through the page cache, which is asked to forget\n"
    "Example: spill_bench --folder /var/tmp --request 4096 --in-flight 256\n";

int main(int count, char** words) try {
  answer_help(count, words, kUsage);
  const Options options = parse(count, words);
  bench({options.direct, true, 1}, options);
  for (const uint64_t threads : options.threads)
    bench({options.direct, false, static_cast<int>(threads)}, options);
} catch (const Error& error) {
  std::fprintf(stderr, "spill_bench: %s\n", error.what());
  return 1;
}

namespace {

[[noreturn]] void give_up(const char* what, const char* which) {
  std::fprintf(stderr, "%s\nspill_bench: %s%s\n", kUsage, what, which);
  std::exit(1);
}

std::vector<uint64_t> numbers(const char* text) {
  std::vector<uint64_t> values;
  for (char* end; *text; text = *end ? end + 1 : end) {
    values.push_back(std::strtoull(text, &end, 10));
    if (end == text || values.back() == 0) give_up("no number: ", text);
  }
  return values;
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string word = words[i];
    if (i + 1 == count) give_up("no value: ", words[i]);
    const char* const value = words[i + 1];
    if (word == "--folder")
      options.folder = value;
    else if (word == "--file-mb")
      options.file_bytes = numbers(value).at(0) << 20;
    else if (word == "--request")
      options.request_bytes = numbers(value);
    else if (word == "--in-flight")
      options.in_flight = numbers(value);
    else if (word == "--threads")
      options.threads = numbers(value);
    else if (word == "--step")
      options.step = numbers(value).at(0);
    else if (word == "--seconds")
      options.seconds = std::atof(value);
    else if (word == "--direct")
      options.direct = std::strcmp(value, "0") != 0;
    else
      give_up("unknown option ", words[i]);
  }
  return options;
}

}  // namespace
