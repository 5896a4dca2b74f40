// What a saved session or KV store consists of, section by section (sections.h has the container). A load
// trusts nothing it reads, takes memory only for what has been verified or is next, and leaves to its caller
// which of the saved parameters it wants; an index of another version than the policy's own is passed over.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "src/buffer/wave_buffer.h"
#include "src/store/exact_tokens.h"
#include "src/store/input_file.h"
#include "src/store/sections.h"
#include "src/store/sequence.h"

namespace wi {

// Names a model's weights and hyper-parameters.
struct ModelIdentity {
  uint64_t low = 0, high = 0;
  bool operator==(const ModelIdentity&) const = default;
};

// How a sequence is indexed and read.
struct SavedParams {
  KvShape shape;
  int32_t query_heads = 0;
  const Policy* policy = nullptr;
  PolicyParams policy_params;
  uint64_t kv_budget_bytes = 0;
  int32_t sparse_read_tokens = 0;  // of sessions, as prefix_reuse
  bool prefix_reuse = true;
};

// What a session has beside keys, values and indexes.
struct SessionImage {
  ModelIdentity model;
  int32_t vocab = 0;
  std::vector<int32_t> tokens;
  ExactTokens exact;
  std::vector<float> logits;  // of the last computed token; may be empty
  // Where the last prefill ended, and up to where the sequence was sealed then; 0: there is nothing to go back to.
  int64_t prompt_end = 0, prompt_sealed_end = 0;
  std::vector<float> prompt_logits;  // empty: they are `logits`
  // Since how many tokens what was sealed were units, while decoding, and how far it was sealed then; -1: since the prompt's
  // end, or nobody knows.
  int64_t grows_from = -1, grows_from_sealed_end = 0;
  std::string sampler;        // fields in a form of the sampler's own (save.cpp)
  std::string pending_bytes;  // of text
};

// image null: a KV store. buffer: of the sequence's slow tier, null: there is none; nobody needs to be reading. Throws
// what the sink throws, and WI_E_CANCELLED.
void write_session_file(ByteSink& to, const SavedParams& params, const Sequence& sequence,
                        const SessionImage* image, WaveBuffer* buffer, const std::atomic<bool>* cancel);
// What that writes.
uint64_t session_file_bytes(const SavedParams& params, const Sequence& sequence, const SessionImage* image);

class SavedFile;

// Where keys and values of segments may stay when they are loaded.
struct InPlace {
  WaveBuffer* buffer = nullptr;     // null: they come into memory
  const InputFile* file = nullptr;  // that is read
};

// Reads in the order of its functions. Damage is WI_E_FORMAT naming the field and the byte offset.
class SessionFile {
 public:
  // The parameters. WI_E_UNSUPPORTED for a policy that the backend lacks.
  SessionFile(ByteSource& from, FileKind kind, const Backend& backend, const std::atomic<bool>* cancel);
  const SavedParams& params() const { return params_; }
  // Of a session; keys and values are not yet read. tokens and logits come with read_sequence().
  SessionImage& image() { return image_; }
  // Called before so many bytes are taken for what is read behind what there is. May be empty.
  using BeforeBytes = std::function<void(const Sequence& read, uint64_t bytes)>;
  // Fills `sequence`, which is empty, charging its budget. True if its segments' indexes are of another
  // version: they were left out, and all that may be done with the sequence is reindex(). With a place, what the
  // file has of segments' keys and values is not read at all: it is verified whenever it is.
  bool read_sequence(Sequence& sequence, const Stream& stream, const InPlace& place,
                     const BeforeBytes& before = {});

 private:
  void read_params(const Backend& backend);
  void read_state();
  void read_tokens();
  void read_prompt();
  void read_growth();
  void read_exact();
  int64_t next_first(const Sequence& sequence) const;
  int32_t read_span(const Sequence& sequence);
  void read_segment(Sequence& sequence, const BlockRef& sink, const BeforeBytes& before);
  void expect_more(uint64_t read_bytes, uint64_t page_bytes);
  void read_offsets(int32_t tokens, const std::vector<Segment::HeadIndex>& heads, int32_t* offsets);
  void read_pages(const Sequence& sequence, Segment& segment, size_t slots);
  std::vector<uint32_t> unpack_pages(Segment& segment, size_t slots);
  void verify_segments(const Sequence& sequence, const Stream& stream);
  void verify_places(const Segment& segment, size_t plane, std::vector<char>& taken) const;
  void verify_index(const Segment& segment, size_t plane, std::vector<int32_t>& offsets) const;
  void read_segment_2(Sequence& sequence, const BlockRef& sink, const BeforeBytes& before);
  void order_by_position(const Segment& segment);
  HostBuffer read_index(const Sequence& sequence, const Segment& segment, uint64_t later_bytes,
                        std::vector<Segment::HeadIndex>& heads, const BeforeBytes& before);
  void require_valid_index(const KvShape& shape, int32_t tokens, size_t plane, const Segment::HeadIndex& head,
                           const HostBuffer& index) const;

  SectionReader reader_;
  FileKind kind_;
  SavedParams params_;
  uint32_t index_version_ = 0;
  SessionImage image_;
  int64_t tokens_ = 0;    // a pending one included
  int64_t computed_ = 0;  // with keys and values
  int64_t sealed_end_ = 0, settled_end_ = 0;
  uint32_t segments_ = 0;
  InPlace place_;
  std::shared_ptr<SavedFile> saved_;  // of place_, with the first segment
};

}  // namespace wi
