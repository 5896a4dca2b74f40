// Version 3. Sections, in this order (those with * of sessions only):
//
//   MODL*  identity of the model u64 × 2, vocab i32
//   SHAP   layers, kv_heads, head_dim, kv_type (WI_KV_*), query_heads: i32
//   POLI   policy's name, version of its index's layout u32, its parameters as in write_policy()
//   OPTS   kv_budget_bytes u64, sparse_read_tokens i32, prefix_reuse i32
//   SMPL*  the sampler (src/sampling/sampler_fields.h)
//   TEXT*  bytes of an incomplete code point
//   STAT   tokens, of them computed, sealed_end, exact_end: i64; segments u32; settled_end i64
//   TOKN*  ids, i32
//   LOGT*  logits of the last computed token, f32, or nothing
//   SINK   one block (layers, kv_heads, {K, V}, 4, head_dim), if there are tokens
//   once a segment, the planes of its (layers, kv_heads) each:
//     SEGM   first position i64, tokens i64, partitions of each plane i32; then of each plane where in the
//            stored order its partitions end, i32; then of each plane every token's place in that order (tokens),
//            by position, i32
//     INDX   (layers * kv_heads) × {offset u64, bytes u64, partitions i32}, then the index
//     PAGE   keys and values, aligned, plane by plane as the slow tier has them (src/buffer/plane_pages.h), so
//            that the file is one: a load may leave them where they are
//     SUMS   checksums of those pages, u32 (planes, page_slots): the low half of their XXH3-64, 0 where a slot
//            has no page
//   TAIL   whole blocks (layers, kv_heads, {K, V}, 64, head_dim); what no token is in is zero
//   PRMT*  may be passed over, and is missing in older files: where the last prefill ended, how far all was
//          sealed then, i64; logits of that time, f32, or nothing if they are those of LOGT. A truncate to there
//          brings them back
//   GROW*  likewise: since how many tokens what was sealed were units, while decoding, and how far it was sealed then, i64;
//          where that is not what PRMT says
//   EXCT*  likewise: of tokens from exact_end on, which were computed exactly: from and up to, i64 each, in order
//
// Version 2, which is read as well, has of a segment only SEGM (first position, tokens, keys and values
// (layers, kv_heads, {K, V}, tokens, head_dim), each place's position (layers, kv_heads, tokens) i32) and INDX.
#include "src/store/session_file.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "src/buffer/saved_file.h"
#include "src/error.h"

namespace wi {
namespace {

constexpr uint32_t kMostNameBytes = 64, kMostTextBytes = 4096;
constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr int32_t kMostTokensOfSegment = 1 << 24;

int32_t kv_type_of(DType type) {
  return type == DType::f16 ? WI_KV_F16 : type == DType::bf16 ? WI_KV_BF16 : WI_KV_F32;
}

int64_t tail_blocks_of(int64_t tail_tokens) { return (tail_tokens + kBlockTokens - 1) / kBlockTokens; }

void write_policy(FieldWriter& to, const Policy& policy, const PolicyParams& p) {
  to.text(policy.name);
  to.u32(policy.index_version);
  to.i32(p.segment_tokens);
  to.i32(p.decode_segment_tokens);
  to.i32(p.tokens_per_centroid);
  to.i32(p.max_cluster_tokens);
  to.i32(p.kmeans_iterations);
  to.i32(p.local_window);
  to.f32(p.budget);
  to.f32(p.estimation);
  to.f32(p.target_mass);
  to.f32(p.budget_floor);
  to.f32(p.budget_ceiling);
  to.i32(p.repeats);
}

PolicyParams read_policy(SectionReader& from) {
  PolicyParams p;
  p.segment_tokens = from.i32("segment_tokens");
  p.decode_segment_tokens = from.i32("decode_segment_tokens");
  p.tokens_per_centroid = from.i32("tokens_per_centroid");
  p.max_cluster_tokens = from.i32("max_cluster_tokens");
  p.kmeans_iterations = from.i32("kmeans_iterations");
  p.local_window = from.i32("local_window");
  p.budget = from.f32("budget");
  p.estimation = from.f32("estimation");
  p.target_mass = from.f32("target_mass");
  p.budget_floor = from.f32("budget_floor");
  p.budget_ceiling = from.f32("budget_ceiling");
  p.repeats = from.i32("repeats");
  return p;
}

// A block's first `used` tokens. What else its memory holds (tokens that were cut off, other sessions') is
// nobody's business.
void write_block(FieldWriter& to, const KvShape& shape, const TokenBlock& block, int64_t used) {
  const size_t row = shape.head_bytes(), capacity = static_cast<size_t>(block.capacity());
  const size_t rows = static_cast<size_t>(std::clamp<int64_t>(used, 0, block.capacity()));
  const auto raw = [&](uint64_t first, uint64_t bytes) {
    to.fetched(bytes,
               [&](uint64_t offset, void* out, size_t count) { block.copy_out(first + offset, out, count); });
  };
  if (rows == capacity) return raw(0, block.kv_bytes());
  for (uint64_t plane = 0; plane < block.kv_bytes(); plane += capacity * row) {
    raw(plane, rows * row);
    to.zeros((capacity - rows) * row);
  }
}

void read_block(SectionReader& from, const char* field, TokenBlock& block) {
  from.handed(block.bytes(), field,
              [&](uint64_t offset, const void* bytes, size_t count) { block.copy_in(offset, bytes, count); });
}

// Whole pages of a plane at a time: some MB, which is many reads of a slow tier at once.
constexpr size_t kChunkBytes = size_t{4} << 20;
template <class Visit>  // visit(first, end)
void each_chunk(const PlaneLayout& plane, size_t row_bytes, const Visit& visit) {
  const auto most = static_cast<int32_t>(std::max<size_t>(kChunkBytes / (2 * row_bytes), kFrameTokens));
  int32_t begin = 0;
  each_page(plane, 0, plane.tokens(), [&](const PlanePage& page) {
    if (page.first + page.tokens - begin <= most) return;
    visit(begin, page.first);
    begin = page.first;
  });
  visit(begin, plane.tokens());
}

// Between pages of a chunk and its rows, keys and values each (end - begin, head_dim): copy(page's, rows', bytes).
template <class Copy>
void each_half(const PlaneLayout& plane, int32_t begin, int32_t end, size_t row_bytes, std::byte* packed,
               std::byte* keys, std::byte* values, const Copy& copy) {
  each_page(plane, begin, end, [&](const PlanePage& page) {
    const size_t at = static_cast<size_t>(page.first - begin) * row_bytes,
                 half = static_cast<size_t>(page.tokens) * row_bytes;
    copy(packed, keys + at, half);
    copy(packed + half, values + at, half);
    packed += 2 * half;
  });
}

// A chunk's rows, keys and values, where the host reads and writes them: in the segment's memory or, where that is
// for kernels alone, in room of its own, for a copy from or to a device takes as long for a page as for a thousand.
class ChunkRows {
 public:
  void open(const Segment& segment, size_t plane, int32_t begin, int32_t end) {
    const KvShape& shape = segment.shape();
    const auto layer = static_cast<int32_t>(plane) / shape.kv_heads,
               head = static_cast<int32_t>(plane) % shape.kv_heads;
    const size_t offset = static_cast<size_t>(begin) * shape.head_bytes();
    memory_ = &segment.memory();
    half_ = static_cast<size_t>(end - begin) * shape.head_bytes();
    own_keys_ = segment.keys(layer, head) + offset;
    own_values_ = segment.values(layer, head) + offset;
    if (!memory_->host_loads() && room_.size() < 2 * half_) room_.resize(2 * half_);
  }
  std::byte* keys() { return memory_->host_loads() ? own_keys_ : room_.data(); }
  std::byte* values() { return memory_->host_loads() ? own_values_ : room_.data() + half_; }
  void fetch() {
    if (memory_->host_loads()) return;
    const CopyPiece pieces[] = {{keys(), own_keys_, half_}, {values(), own_values_, half_}};
    memory_->copy(pieces);
  }
  void store() {
    if (memory_->host_loads()) return;
    const CopyPiece pieces[] = {{own_keys_, keys(), half_}, {own_values_, values(), half_}};
    memory_->copy(pieces);
  }

 private:
  Memory* memory_ = nullptr;
  std::byte *own_keys_ = nullptr, *own_values_ = nullptr;
  size_t half_ = 0;
  std::vector<std::byte> room_;
};

// Keys and values as they are to lie in a file. What is in a slow tier lies so already, and is read once.
class PageSource {
 public:
  explicit PageSource(WaveBuffer* buffer) : buffer_(buffer) {}  // null: there is no slow tier
  // put(pages, bytes) some at a time; checksums (page_slots), zero before.
  template <class Put>
  void each(const Segment& segment, size_t plane, uint32_t* checksums, const Put& put) {
    const KvShape& shape = segment.shape();
    const size_t row = shape.head_bytes();
    const PlaneLayout layout = segment.layout(plane);
    each_chunk(layout, row, [&](int32_t begin, int32_t end) {
      const size_t bytes = 2 * row * static_cast<size_t>(end - begin);
      if (room_.size() < bytes) room_.resize(bytes);
      fetch(segment, plane, layout, begin, end);
      const std::byte* at = room_.data();
      each_page(layout, begin, end, [&](const PlanePage& page) {
        const size_t page_bytes = 2 * row * static_cast<size_t>(page.tokens);
        checksums[page.slot] = page_checksum(at, page_bytes);
        at += page_bytes;
      });
      put(room_.data(), bytes);
    });
  }

 private:
  // A chunk at a time: who writes it may be slow, and others wait for the memory of what leaves meanwhile.
  void fetch(const Segment& segment, size_t plane, const PlaneLayout& layout, int32_t begin, int32_t end) {
    const WaveBuffer::Reading reading(buffer_);
    const KvShape& shape = segment.shape();
    const size_t row = shape.head_bytes();
    std::byte* at = room_.data();
    const auto place = segment.slow_place(static_cast<int32_t>(plane) / shape.kv_heads,
                                          static_cast<int32_t>(plane) % shape.kv_heads);
    if (const SlowKv* const slow = place.kv) {
      if (of_ != slow->file()) {
        reader_ = std::make_unique<SpillReader>(slow->file());
        of_ = slow->file();
      }
      const ReadRequest request = slow->request(place.plane, begin, end - begin, at);
      reader_->read({&request, 1});
      each_page(layout, begin, end, [&](const PlanePage& page) {
        const size_t bytes = 2 * row * static_cast<size_t>(page.tokens);
        slow->plane(place.plane).verify(page.slot, at, bytes);
        at += bytes;
      });
      return;
    }
    rows_.open(segment, plane, begin, end);
    rows_.fetch();
    each_half(layout, begin, end, row, at, rows_.keys(), rows_.values(),
              [](std::byte* page, const std::byte* rows, size_t bytes) { std::memcpy(page, rows, bytes); });
  }

  WaveBuffer* const buffer_;
  std::vector<std::byte> room_;
  ChunkRows rows_;
  std::unique_ptr<SpillReader> reader_;
  std::shared_ptr<SpillFile> of_;  // reader_'s
};

void write_segment(SectionWriter& to, const Segment& segment, PageSource& pages) {
  const size_t planes = segment.heads().size();
  size_t slots = 0;
  for (size_t plane = 0; plane < planes; ++plane)
    slots += page_slots(segment.tokens(), segment.layout(plane).partitions);
  to.section("SEGM", [&](FieldWriter& fields) {
    fields.i64(segment.first_position());
    fields.i64(segment.tokens());
    for (const Segment::HeadIndex& head : segment.heads()) fields.i32(head.partitions);
    for (size_t plane = 0; plane < planes; ++plane) {
      const PlaneLayout layout = segment.layout(plane);
      fields.raw(layout.offsets + 1, static_cast<size_t>(layout.partitions) * sizeof(int32_t));
    }
    fields.raw(segment.places(0, 0), planes * static_cast<size_t>(segment.tokens()) * sizeof(int32_t));
  });
  to.section("INDX", [&](FieldWriter& fields) {
    for (const Segment::HeadIndex& head : segment.heads()) {
      fields.u64(head.offset);
      fields.u64(head.bytes);
      fields.i32(head.partitions);
    }
    fields.raw(segment.index().data(), segment.index().bytes());
  });
  std::vector<uint32_t> checksums(to.measures() ? 0 : slots);
  to.aligned("PAGE", segment.kv_bytes(), [&](const auto& put) {
    uint32_t* of_plane = checksums.data();
    for (size_t plane = 0; plane < planes; ++plane) {
      pages.each(segment, plane, of_plane, put);
      of_plane += page_slots(segment.tokens(), segment.layout(plane).partitions);
    }
  });
  to.section("SUMS", [&](FieldWriter& fields) { fields.raw(checksums.data(), slots * sizeof(uint32_t)); });
}

void write_sections(SectionWriter& to, const SavedParams& params, const Sequence& sequence,
                    const SessionImage* image, WaveBuffer* buffer) {
  const KvShape& shape = sequence.shape();
  if (image) {
    to.section("MODL", [&](FieldWriter& fields) {
      fields.u64(image->model.low);
      fields.u64(image->model.high);
      fields.i32(image->vocab);
    });
  }
  to.section("SHAP", [&](FieldWriter& fields) {
    for (int32_t value :
         {shape.layers, shape.kv_heads, shape.head_dim, kv_type_of(shape.dtype), params.query_heads})
      fields.i32(value);
  });
  to.section("POLI",
             [&](FieldWriter& fields) { write_policy(fields, *params.policy, params.policy_params); });
  to.section("OPTS", [&](FieldWriter& fields) {
    fields.u64(params.kv_budget_bytes);
    fields.i32(params.sparse_read_tokens);
    fields.i32(params.prefix_reuse ? WI_PREFIX_REUSE_AUTO : WI_PREFIX_REUSE_OFF);
  });
  if (image) {
    to.section("SMPL",
               [&](FieldWriter& fields) { fields.raw(image->sampler.data(), image->sampler.size()); });
    to.section("TEXT", [&](FieldWriter& fields) { fields.text(image->pending_bytes); });
  }
  to.section("STAT", [&](FieldWriter& fields) {
    fields.i64(image ? static_cast<int64_t>(image->tokens.size()) : sequence.tokens());
    fields.i64(sequence.tokens());
    fields.i64(sequence.sealed_end());
    fields.i64(image ? image->exact.prefix() : 0);
    fields.u32(static_cast<uint32_t>(sequence.segments().size()));
    fields.i64(sequence.settled_end());
  });
  if (image) {
    to.section("TOKN", [&](FieldWriter& fields) {
      fields.raw(image->tokens.data(), image->tokens.size() * sizeof(int32_t));
    });
    to.section("LOGT", [&](FieldWriter& fields) {
      fields.raw(image->logits.data(), image->logits.size() * sizeof(float));
    });
  }
  if (sequence.tokens() == 0) return;  // and there is no prompt
  to.section("SINK",
             [&](FieldWriter& fields) { write_block(fields, shape, *sequence.sink(), sequence.tokens()); });
  PageSource pages(buffer);
  for (const auto& segment : sequence.segments()) write_segment(to, *segment, pages);
  to.section("TAIL", [&](FieldWriter& fields) {
    const int64_t blocks = tail_blocks_of(sequence.tail_tokens());
    for (int64_t i = 0; i < blocks; ++i)
      write_block(fields, shape, *sequence.tail()[static_cast<size_t>(i)],
                  sequence.tail_tokens() - i * kBlockTokens);
  });
  if (!image) return;
  const auto write_exact = [&](FieldWriter& fields) {
    for (const ExactTokens::Range& range : image->exact.later()) {
      fields.i64(range.begin);
      fields.i64(range.end);
    }
  };
  const auto write_prompt = [&](FieldWriter& fields) {
    fields.i64(image->prompt_end);
    fields.i64(image->prompt_sealed_end);
    fields.raw(image->prompt_logits.data(), image->prompt_logits.size() * sizeof(float));
  };
  if (image->prompt_end > 0) to.section("PRMT", write_prompt, SectionWriter::Need::optional);
  const auto write_growth = [&](FieldWriter& fields) {
    fields.i64(image->grows_from);
    fields.i64(image->grows_from_sealed_end);
  };
  if (image->grows_from >= 0) to.section("GROW", write_growth, SectionWriter::Need::optional);
  if (!image->exact.later().empty()) to.section("EXCT", write_exact, SectionWriter::Need::optional);
}

}  // namespace

uint64_t session_file_bytes(const SavedParams& params, const Sequence& sequence, const SessionImage* image) {
  SectionWriter measure;
  measure.preamble(image ? FileKind::session : FileKind::kv, 0);
  write_sections(measure, params, sequence, image, nullptr);
  return measure.bytes();
}

void write_session_file(ByteSink& to, const SavedParams& params, const Sequence& sequence,
                        const SessionImage* image, WaveBuffer* buffer, const std::atomic<bool>* cancel) {
  SectionWriter writer(to, cancel);
  writer.preamble(image ? FileKind::session : FileKind::kv, session_file_bytes(params, sequence, image));
  write_sections(writer, params, sequence, image, buffer);
}

// ---- reading ----

SessionFile::SessionFile(ByteSource& from, FileKind kind, const Backend& backend,
                         const std::atomic<bool>* cancel)
    : reader_(from, kind, cancel), kind_(kind) {
  if (kind_ == FileKind::session) {
    reader_.open("MODL");
    image_.model.low = reader_.u64("model identity");
    image_.model.high = reader_.u64("model identity");
    image_.vocab = reader_.i32("vocab");
    reader_.require(image_.vocab > 0, "vocab", " is ", image_.vocab);
    reader_.close();
  }
  read_params(backend);
  if (kind_ == FileKind::session) {
    reader_.open("SMPL");
    while (reader_.left() > 0) {  // as pieces are verified
      const size_t done = image_.sampler.size();
      const auto more = static_cast<size_t>(std::min<uint64_t>(reader_.left(), kPieceBytes));
      image_.sampler.resize(done + more);
      reader_.raw(image_.sampler.data() + done, more, "sampler");
    }
    reader_.open("TEXT");
    image_.pending_bytes = reader_.text("pending text", kMostTextBytes);
    reader_.close();
  }
  read_state();
}

// Everything that a size is computed from is bounded here, so that no later product overflows.
void SessionFile::read_params(const Backend& backend) {
  reader_.open("SHAP");
  KvShape& shape = params_.shape;
  const auto count = [&](const char* name) {
    const int32_t value = reader_.i32(name);
    reader_.require(value > 0 && value <= 65536, name, " is ", value);
    return value;
  };
  shape.layers = count("layers");
  shape.kv_heads = count("kv_heads");
  shape.head_dim = count("head_dim");
  reader_.require(shape.head_dim % kHeadDimStep == 0, "head_dim", " is ", shape.head_dim, ", no multiple of ",
                  kHeadDimStep);
  const int32_t kv_type = reader_.i32("kv_type");
  params_.query_heads = count("query_heads");
  reader_.require(kv_type >= WI_KV_F16 && kv_type <= WI_KV_F32, "kv_type", " is ", kv_type);
  shape.dtype = kv_type == WI_KV_F16 ? DType::f16 : kv_type == WI_KV_BF16 ? DType::bf16 : DType::f32;
  reader_.require(params_.query_heads % shape.kv_heads == 0, "query_heads", " is ", params_.query_heads,
                  ", no multiple of kv_heads, ", shape.kv_heads);
  reader_.require(shape.token_bytes() <= kMostTokenBytes, "shape", ": a token has ", shape.token_bytes(),
                  " bytes");
  reader_.close();

  reader_.open("POLI");
  const std::string name = reader_.text("policy", kMostNameBytes);
  index_version_ = reader_.u32("index_version");
  params_.policy_params = read_policy(reader_);
  reader_.close();
  params_.policy = find_policy(backend, name.c_str());
  check(params_.policy != nullptr, WI_E_UNSUPPORTED, "the file was saved with policy \"", name,
        "\", which the ", backend.name, " backend does not have");

  reader_.open("OPTS");
  params_.kv_budget_bytes = reader_.u64("kv_budget_bytes");
  params_.sparse_read_tokens = reader_.i32("sparse_read_tokens");
  const int32_t prefix_reuse = reader_.i32("prefix_reuse");
  reader_.require(params_.sparse_read_tokens >= 0, "sparse_read_tokens", " is ", params_.sparse_read_tokens);
  reader_.require(prefix_reuse == WI_PREFIX_REUSE_AUTO || prefix_reuse == WI_PREFIX_REUSE_OFF, "prefix_reuse",
                  " is ", prefix_reuse);
  params_.prefix_reuse = prefix_reuse == WI_PREFIX_REUSE_AUTO;
  reader_.close();
}

void SessionFile::read_state() {
  reader_.open("STAT");
  tokens_ = reader_.i64("tokens");
  computed_ = reader_.i64("computed_tokens");
  sealed_end_ = reader_.i64("sealed_end");
  const int64_t exact_end = reader_.i64("exact_end");
  segments_ = reader_.u32("segments");
  settled_end_ = reader_.i64("settled_end");
  reader_.require(tokens_ >= 0 && tokens_ < kMostTokens, "tokens", " is ", tokens_);
  const int64_t pending = tokens_ - computed_;
  reader_.require(computed_ >= 0 && (pending == 0 || (pending == 1 && kind_ == FileKind::session)),
                  "computed_tokens", " is ", computed_, ", tokens is ", tokens_);
  reader_.require(exact_end >= 0 && exact_end <= tokens_, "exact_end", " is ", exact_end);
  image_.exact.restore(exact_end);
  reader_.require(sealed_end_ >= kSinkTokens && sealed_end_ <= std::max<int64_t>(computed_, kSinkTokens) &&
                      (segments_ > 0) == (sealed_end_ > kSinkTokens),
                  "sealed_end", " is ", sealed_end_, " with ", segments_, " segments and ", computed_,
                  " tokens");
  reader_.require(settled_end_ >= kSinkTokens && settled_end_ <= sealed_end_, "settled_end", " is ",
                  settled_end_, ", sealed_end is ", sealed_end_);
  reader_.close();
}

bool SessionFile::read_sequence(Sequence& sequence, const Stream& stream, const InPlace& place,
                                const BeforeBytes& before) {
  if (kind_ == FileKind::session) read_tokens();
  Sequence loaded = sequence;
  if (computed_ > 0) {
    const KvShape& shape = sequence.shape();
    reader_.open("SINK");
    reader_.require(reader_.left() == kSinkTokens * shape.token_bytes(), "sink", " has ", reader_.left(),
                    " bytes");
    loaded.check_budget(kSinkTokens * shape.token_bytes(), "a session file's first tokens");
    BlockRef sink(new TokenBlock(*sequence.pools().pages, shape, kSinkTokens));
    read_block(reader_, "sink", *sink);
    reader_.close();
    place_ = sequence.shape().windows ? InPlace{} : place;
    for (uint32_t i = 0; i < segments_; ++i) {
      if (reader_.version() == 2)
        read_segment_2(loaded, sink, before);
      else
        read_segment(loaded, sink, before);
    }
    reader_.require(segments_ == 0 || loaded.sealed_end() == sealed_end_, "segments", ": they end at ",
                    loaded.sealed_end(), ", sealed_end is ", sealed_end_);
    const auto ends_there = [&](const auto& segment) { return segment->end_position() == settled_end_; };
    reader_.require(settled_end_ == kSinkTokens ||
                        std::any_of(loaded.segments().begin(), loaded.segments().end(), ends_there),
                    "settled_end", " is ", settled_end_, ", where no segment ends");
    reader_.open("TAIL");
    const int64_t blocks = tail_blocks_of(std::max<int64_t>(computed_ - sealed_end_, 0));
    const uint64_t tail_bytes = static_cast<uint64_t>(blocks) * kBlockTokens * shape.token_bytes();
    reader_.require(reader_.left() == tail_bytes, "tail", ": ", blocks, " blocks do not fit ", reader_.left(),
                    " bytes");
    if (before) before(loaded, tail_bytes);
    loaded.check_budget(tail_bytes, "a session file's recent tokens");
    std::vector<BlockRef> tail;
    tail.reserve(static_cast<size_t>(blocks));  // so that no block is without an owner
    for (int64_t i = 0; i < blocks; ++i) {
      tail.emplace_back(new TokenBlock(*sequence.pools().pages, shape, kBlockTokens));
      read_block(reader_, "tail", *tail.back());
    }
    reader_.close();
    loaded.restore_tail(sink, std::move(tail), computed_);
    loaded.restore_settled_end(settled_end_);
  }
  if (kind_ == FileKind::session && reader_.open_if_any("PRMT")) read_prompt();
  if (kind_ == FileKind::session && reader_.open_if_any("GROW")) read_growth();
  if (kind_ == FileKind::session && reader_.open_if_any("EXCT")) read_exact();
  reader_.end();
  if (reader_.version() > 2) verify_segments(loaded, stream);
  sequence = std::move(loaded);
  return index_version_ != params_.policy->index_version && segments_ > 0;
}

namespace {

// An array of 4-byte numbers that takes a whole section: grows as its pieces are verified.
template <class T>
void read_array(SectionReader& reader, const char* tag, uint64_t count, std::vector<T>& out) {
  static_assert(sizeof(T) == 4);
  reader.require(reader.left() == count * sizeof(T), tag, " has ", reader.left(), " bytes for ", count,
                 " numbers");
  out.reserve(static_cast<size_t>(count));
  while (out.size() < count) {
    const size_t done = out.size();
    out.resize(static_cast<size_t>(std::min<uint64_t>(count, done + kPieceBytes / sizeof(T))));
    reader.raw(out.data() + done, (out.size() - done) * sizeof(T), tag);
  }
}

}  // namespace

void SessionFile::read_tokens() {
  reader_.open("TOKN");
  read_array(reader_, "tokens", static_cast<uint64_t>(tokens_), image_.tokens);
  for (size_t i = 0; i < image_.tokens.size(); ++i) {
    reader_.require(image_.tokens[i] >= 0 && image_.tokens[i] < image_.vocab, "tokens", ": token ", i, " is ",
                    image_.tokens[i], ", the vocabulary has ", image_.vocab);
  }
  reader_.open("LOGT");
  const bool needed = computed_ == tokens_ && tokens_ > 0;
  if (needed || reader_.left() > 0)
    read_array(reader_, "logits", static_cast<uint64_t>(image_.vocab), image_.logits);
}

void SessionFile::read_prompt() {
  image_.prompt_end = reader_.i64("prompt_end");
  image_.prompt_sealed_end = reader_.i64("prompt_sealed_end");
  reader_.require(image_.prompt_end > 0 && image_.prompt_end <= computed_, "prompt_end", " is ",
                  image_.prompt_end, " of ", computed_, " tokens");
  reader_.require(image_.prompt_sealed_end >= kSinkTokens &&
                      image_.prompt_sealed_end <= std::max<int64_t>(image_.prompt_end, kSinkTokens),
                  "prompt_sealed_end", " is ", image_.prompt_sealed_end, ", prompt_end is ",
                  image_.prompt_end);
  if (reader_.left() > 0)
    read_array(reader_, "prompt logits", static_cast<uint64_t>(image_.vocab), image_.prompt_logits);
  else
    reader_.require(!image_.logits.empty(), "prompt logits", " are missing, as those of \"LOGT\"");
}

void SessionFile::read_growth() {
  image_.grows_from = reader_.i64("grows_from");
  image_.grows_from_sealed_end = reader_.i64("grows_from_sealed_end");
  reader_.require(image_.grows_from >= 0 && image_.grows_from <= computed_, "grows_from", " is ",
                  image_.grows_from, " of ", computed_, " tokens");
  reader_.require(image_.grows_from_sealed_end >= kSinkTokens &&
                      image_.grows_from_sealed_end <= std::max<int64_t>(image_.grows_from, kSinkTokens),
                  "grows_from_sealed_end", " is ", image_.grows_from_sealed_end, ", grows_from is ",
                  image_.grows_from);
}

void SessionFile::read_exact() {
  std::vector<ExactTokens::Range> later;
  for (int64_t before = image_.exact.prefix(); reader_.left() > 0; before = later.back().end) {
    ExactTokens::Range range;
    range.begin = reader_.i64("exact tokens");
    range.end = reader_.i64("exact tokens");
    reader_.require(range.begin > before && range.end > range.begin && range.end <= tokens_, "exact tokens",
                    ": ", range.begin, " to ", range.end, " of ", tokens_, " come after ", before);
    later.push_back(range);
  }
  image_.exact.restore(image_.exact.prefix(), std::move(later));
}

// What of a segment shapes all that follows; returns its tokens.
int32_t SessionFile::read_span(const Sequence& sequence) {
  const int64_t first = next_first(sequence);
  reader_.open("SEGM");
  const int64_t first_position = reader_.i64("first_position"), tokens = reader_.i64("segment tokens");
  reader_.require(first_position == first, "first_position", " is ", first_position,
                  ", the segment before ends at ", first);
  reader_.require(tokens > 0 && tokens <= kMostTokensOfSegment && tokens % kBlockTokens == 0 &&
                      tokens <= sealed_end_ - first,
                  "segment tokens", " is ", tokens);
  return static_cast<int32_t>(tokens);
}

int64_t SessionFile::next_first(const Sequence& sequence) const {
  return sequence.segments().empty() ? kSinkTokens : sequence.tokens();
}

// What it holds is looked at in verify_segments(), when all are read, except for what is followed before that.
void SessionFile::read_segment(Sequence& sequence, const BlockRef& sink, const BeforeBytes& before) {
  const KvShape& shape = sequence.shape();
  HostPool& host = *sequence.pools().host;
  const int64_t first = next_first(sequence);
  const uint64_t start = reader_.offset();
  const int32_t tokens = read_span(sequence);
  const size_t planes = static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.kv_heads);
  const uint64_t place_bytes = planes * static_cast<uint64_t>(tokens) * sizeof(int32_t);
  std::vector<Segment::HeadIndex> heads(planes);
  uint64_t partitions = 0;
  size_t slots = 0;
  for (Segment::HeadIndex& head : heads) {
    head.partitions = reader_.i32("partitions");
    reader_.require(head.partitions > 0 && head.partitions <= tokens, "partitions", " is ", head.partitions,
                    " for ", tokens, " tokens");
    partitions += static_cast<uint64_t>(head.partitions);
    slots += page_slots(tokens, head.partitions);
  }
  reader_.require(partitions * sizeof(int32_t) + place_bytes == reader_.left(), "segment tokens", " is ",
                  tokens, ", which does not fit ", reader_.left(), " bytes");
  const uint64_t offset_bytes = (partitions + planes) * sizeof(int32_t);
  // Others' keys and values would make room for what does not come.
  const uint64_t kv_bytes = static_cast<uint64_t>(tokens) * shape.token_bytes();
  reader_.require(kv_bytes <= reader_.left_of_all(), "segment tokens", " is ", tokens, ", whose pages have ",
                  kv_bytes, " bytes, of which there are ", reader_.left_of_all());
  const uint64_t later_bytes = place_.buffer ? slots * sizeof(uint32_t) : kv_bytes;
  if (before) before(sequence, Segment::order_bytes(shape, tokens, partitions) + later_bytes);
  sequence.check_budget(place_bytes + offset_bytes, "a session file's segment");
  auto segment = std::make_shared<Segment>(sequence.pools(), shape, first, tokens, Segment::WithoutKv{});
  HostBuffer offsets = host.allocate(offset_bytes, "a segment's offsets");
  read_offsets(tokens, heads, offsets.as<int32_t>());
  reader_.raw(segment->places(0, 0), place_bytes, "places");

  HostBuffer index;
  if (index_version_ == params_.policy->index_version)
    index = read_index(sequence, *segment, later_bytes, heads, before);
  else
    reader_.skip("INDX");
  segment->attach_index(std::move(index), std::move(heads), std::move(offsets));
  if (place_.buffer) expect_more(reader_.offset() - start + slots * sizeof(uint32_t), segment->kv_bytes());
  read_pages(sequence, *segment, slots);
  sequence.adopt(std::move(segment), sink);
}

// What is read between the pages of the next segments, if they are about as long as this one, so that a disk has
// several reads at a time: alone, each waits for the one before.
void SessionFile::expect_more(uint64_t read_bytes, uint64_t page_bytes) {
  constexpr uint64_t kSegments = 4, kMore = uint64_t{128} << 10;
  const uint64_t stride = read_bytes + page_bytes;
  for (uint64_t i = 0; i < kSegments; ++i)
    reader_.expect(reader_.offset() + page_bytes + i * stride, read_bytes + kMore);
}

void SessionFile::read_offsets(int32_t tokens, const std::vector<Segment::HeadIndex>& heads,
                               int32_t* offsets) {
  for (const Segment::HeadIndex& head : heads) {
    offsets[0] = 0;
    reader_.raw(offsets + 1, static_cast<uint64_t>(head.partitions) * sizeof(int32_t), "partition ends");
    bool grow = offsets[head.partitions] == tokens;
    for (int32_t i = 0; i < head.partitions; ++i) grow = grow && offsets[i] < offsets[i + 1];
    reader_.require(grow, "partition ends", " do not grow from 0 to ", tokens);
    offsets += head.partitions + 1;
  }
}

// Keys and values, into memory or left where they are.
void SessionFile::read_pages(const Sequence& sequence, Segment& segment, size_t slots) {
  const uint64_t offset = reader_.open_aligned("PAGE");
  reader_.require(reader_.left() == segment.kv_bytes(), "pages", " of ", segment.tokens(), " tokens have ",
                  reader_.left(), " bytes");
  const uint64_t checksum_bytes = slots * sizeof(uint32_t);
  std::vector<uint32_t> found;
  if (place_.buffer) {
    reader_.leave();
  } else {
    sequence.check_budget(segment.bytes(), "a session file's segment");
    segment.allocate_kv();
    found = unpack_pages(segment, slots);
  }
  reader_.close_aligned();
  reader_.open("SUMS");
  reader_.require(reader_.left() == checksum_bytes, "checksums", " of ", slots, " pages have ",
                  reader_.left(), " bytes");
  if (place_.buffer) {
    sequence.check_budget(segment.index_bytes() + checksum_bytes, "a session file's segment");
    HostBuffer checksums = sequence.pools().host->allocate(checksum_bytes, "a segment's checksums");
    reader_.raw(checksums.data(), checksum_bytes, "checksums");
    if (!saved_)
      saved_ = place_.buffer->saved_files().open(place_.file->number(), place_.file->path(),
                                                 place_.buffer->file()->may_be_direct());
    segment.attach_slow(*place_.buffer, saved_->extent(offset, segment.kv_bytes()), std::move(checksums));
    return;
  }
  std::vector<uint32_t> expected(slots);
  reader_.raw(expected.data(), checksum_bytes, "checksums");
  reader_.require(expected == found, "pages", " of the segment at token ", segment.first_position(),
                  " do not match their checksums: they are damaged");
}

// Returns their checksums.
std::vector<uint32_t> SessionFile::unpack_pages(Segment& segment, size_t slots) {
  const KvShape& shape = segment.shape();
  const size_t row = shape.head_bytes();
  std::vector<uint32_t> checksums(slots);
  std::vector<std::byte> room;
  ChunkRows rows;
  uint32_t* of_plane = checksums.data();
  for (size_t plane = 0; plane < segment.heads().size(); ++plane) {
    const PlaneLayout layout = segment.layout(plane);
    each_chunk(layout, row, [&](int32_t begin, int32_t end) {
      const size_t bytes = 2 * row * static_cast<size_t>(end - begin);
      if (room.size() < bytes) room.resize(bytes);
      for (size_t done = 0; done < bytes; done += std::min<size_t>(bytes - done, kPieceBytes))
        reader_.unverified(room.data() + done, std::min<size_t>(bytes - done, kPieceBytes), "pages");
      std::byte* at = room.data();
      each_page(layout, begin, end, [&](const PlanePage& page) {
        const size_t page_bytes = 2 * row * static_cast<size_t>(page.tokens);
        of_plane[page.slot] = page_checksum(at, page_bytes);
        at += page_bytes;
      });
      rows.open(segment, plane, begin, end);
      each_half(layout, begin, end, row, room.data(), rows.keys(), rows.values(),
                [](const std::byte* page, std::byte* into, size_t bytes) { std::memcpy(into, page, bytes); });
      rows.store();
    });
    of_plane += page_slots(segment.tokens(), layout.partitions);
  }
  return checksums;
}

// Places and indexes are followed without a look while decoding, so they are looked at now, on all threads.
void SessionFile::verify_segments(const Sequence& sequence, const Stream& stream) {
  const KvShape& shape = sequence.shape();
  const auto segments = sequence.segments();
  const int64_t planes = int64_t{shape.layers} * shape.kv_heads;
  struct Room {
    std::vector<char> taken;
    std::vector<int32_t> offsets;
  };
  std::vector<Room> rooms(static_cast<size_t>(stream.workers));
  stream.each(planes * static_cast<int64_t>(segments.size()), [&](int64_t task, int worker) {
    if (stream.cancelled()) return;
    const Segment& segment = *segments[static_cast<size_t>(task / planes)];
    const auto plane = static_cast<size_t>(task % planes);
    Room& room = rooms[static_cast<size_t>(worker)];
    verify_places(segment, plane, room.taken);
    if (index_version_ == params_.policy->index_version) verify_index(segment, plane, room.offsets);
  });
  reader_.poll();
}

void SessionFile::verify_places(const Segment& segment, size_t plane, std::vector<char>& taken) const {
  const KvShape& shape = segment.shape();
  const auto layer = static_cast<int32_t>(plane) / shape.kv_heads,
             head = static_cast<int32_t>(plane) % shape.kv_heads;
  const int32_t* const places = segment.places(layer, head);
  taken.assign(static_cast<size_t>(segment.tokens()), 0);
  bool all = true, in_order = true;
  for (int32_t i = 0; i < segment.tokens() && all; ++i) {
    const auto place = static_cast<uint32_t>(places[i]);
    all = place < static_cast<uint32_t>(segment.tokens()) && !taken[place];
    if (all) taken[place] = 1;
    in_order = in_order && places[i] == i;
  }
  reader_.require(all, "places", " of layer ", layer, ", head ", head, " of the segment at token ",
                  segment.first_position(), ": one is outside the segment or there twice");
  reader_.require(in_order || !shape.window(layer), "places", " of layer ", layer, ", head ", head,
                  " are not in their order");
}

void SessionFile::verify_index(const Segment& segment, size_t plane, std::vector<int32_t>& offsets) const {
  const Segment::HeadIndex& head = segment.heads()[plane];
  require_valid_index(segment.shape(), segment.tokens(), plane, head, segment.index());
  if (head.partitions == 1) return;
  const PlaneLayout layout = segment.layout(plane);
  offsets.resize(static_cast<size_t>(head.partitions) + 1);
  params_.policy->partition_offsets(segment.index().data() + head.offset, head.partitions, segment.tokens(),
                                    offsets.data());
  reader_.require(std::equal(offsets.begin(), offsets.end(), layout.offsets), "partition ends",
                  " of the segment at token ", segment.first_position(), " are not those of its index");
}

// ---- version 2 ----

void SessionFile::read_segment_2(Sequence& sequence, const BlockRef& sink, const BeforeBytes& before) {
  const KvShape& shape = sequence.shape();
  const int64_t first = next_first(sequence);
  const int32_t tokens = read_span(sequence);
  const uint64_t planes = static_cast<uint64_t>(shape.layers) * static_cast<uint64_t>(shape.kv_heads);
  const uint64_t page_bytes =
      static_cast<uint64_t>(tokens) * (shape.token_bytes() + planes * sizeof(int32_t));
  reader_.require(page_bytes == reader_.left(), "segment tokens", " is ", tokens, ", which does not fit ",
                  reader_.left(), " bytes of pages");
  if (before) before(sequence, page_bytes);
  sequence.check_budget(page_bytes, "a session file's segment");
  auto segment = std::make_shared<Segment>(sequence.pools(), shape, first, tokens);
  reader_.handed(segment->kv_bytes(), "pages", [&](uint64_t offset, const void* from, size_t count) {
    segment->copy_in(offset, from, count);
  });
  reader_.raw(segment->places(0, 0), planes * static_cast<uint64_t>(tokens) * sizeof(int32_t), "positions");
  order_by_position(*segment);
  std::vector<Segment::HeadIndex> heads(static_cast<size_t>(planes), {0, 0, 1});
  HostBuffer index;
  if (index_version_ == params_.policy->index_version) {
    index = read_index(sequence, *segment, 0, heads, before);
    for (size_t plane = 0; plane < heads.size(); ++plane) {
      reader_.poll();
      require_valid_index(shape, tokens, plane, heads[plane], index);
    }
  } else {
    reader_.skip("INDX");
  }
  segment->attach_index(*sequence.pools().host, *params_.policy, std::move(index), std::move(heads));
  sequence.adopt(std::move(segment), sink);
}

// From each place's position, as the file has it, to each position's place.
void SessionFile::order_by_position(const Segment& segment) {
  const KvShape& shape = segment.shape();
  constexpr int32_t kNone = -1;
  std::vector<int32_t> place_of(static_cast<size_t>(segment.tokens()));
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      reader_.poll();
      int32_t* const positions = segment.places(layer, head);
      std::fill(place_of.begin(), place_of.end(), kNone);
      for (int32_t i = 0; i < segment.tokens(); ++i) {
        const int64_t at = positions[i] - segment.first_position();
        reader_.require(at >= 0 && at < segment.tokens() && place_of[static_cast<size_t>(at)] == kNone,
                        "positions", ": position ", positions[i], " of layer ", layer, ", head ", head,
                        " is outside the segment or there twice");
        reader_.require(at == i || !shape.window(layer), "positions", ": position ", positions[i],
                        " of layer ", layer, ", head ", head, " is not in its order");
        place_of[static_cast<size_t>(at)] = i;
      }
      std::copy(place_of.begin(), place_of.end(), positions);
    }
  }
}

// ---- of all versions ----

// heads: partitions, where they are known already. later_bytes: that the segment takes when its index has been read.
HostBuffer SessionFile::read_index(const Sequence& sequence, const Segment& segment, uint64_t later_bytes,
                                   std::vector<Segment::HeadIndex>& heads, const BeforeBytes& before) {
  constexpr uint64_t kRowBytes = 20;
  const uint64_t planes = heads.size();
  reader_.open("INDX");
  reader_.require(reader_.left() >= planes * kRowBytes, "index table", " of ", planes, " heads does not fit ",
                  reader_.left(), " bytes");
  const uint64_t index_bytes = reader_.left() - planes * kRowBytes;
  for (Segment::HeadIndex& head : heads) {
    head.offset = reader_.u64("index table");
    head.bytes = reader_.u64("index table");
    const int32_t partitions = reader_.i32("index table");
    reader_.require(
        head.offset % 64 == 0 && head.offset <= index_bytes && head.bytes <= index_bytes - head.offset,
        "index table", ": bytes ", head.offset, " + ", head.bytes, " of ", index_bytes);
    reader_.require(partitions > 0 && partitions <= segment.tokens() &&
                        (reader_.version() == 2 || partitions == head.partitions),
                    "partitions", " is ", partitions, " for ", segment.tokens(), " tokens");
    head.partitions = partitions;
  }
  uint64_t partitions = 0;
  for (const Segment::HeadIndex& head : heads) partitions += static_cast<uint64_t>(head.partitions);
  if (before)
    before(sequence,
           index_bytes + Segment::order_bytes(segment.shape(), segment.tokens(), partitions) + later_bytes);
  HostBuffer index;
  if (index_bytes) {
    const size_t own = place_.buffer ? segment.index_bytes() + segment.staying_bytes() : segment.bytes();
    sequence.check_budget(own + index_bytes, "a session file's segment");
    index = sequence.pools().host->allocate(index_bytes, "a segment's index");
    reader_.raw(index.data(), index_bytes, "index");
  }
  return index;
}

void SessionFile::require_valid_index(const KvShape& shape, int32_t tokens, size_t plane,
                                      const Segment::HeadIndex& head, const HostBuffer& index) const {
  const auto layer = static_cast<int32_t>(plane / static_cast<size_t>(shape.kv_heads));
  const bool valid = params_.policy->index_valid && !shape.window(layer)
                         ? params_.policy->index_valid(index.data() + head.offset, head.bytes,
                                                       head.partitions, tokens, shape.head_dim, shape.dtype)
                         : head.bytes == 0 && head.partitions == 1;
  reader_.require(valid, "index", " of layer ", layer, ", head ", plane % static_cast<size_t>(shape.kv_heads),
                  " is damaged");
}

}  // namespace wi
