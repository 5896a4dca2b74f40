// Saving sessions and KV stores, and loading them again: what of them goes into a file (the container and the
// sections are src/store/'s), and what a load makes of the saved parameters and of what it was asked for.
#include <algorithm>
#include <optional>

#include "src/kv_store.h"
#include "src/memory_plan.h"
#include "src/pipeline/index.h"
#include "src/policy_params.h"
#include "src/sampling/sampler_fields.h"
#include "src/session_room.h"
#include "src/session_use.h"
#include "src/store/input_file.h"
#include "src/store/output_file.h"
#include "src/store/session_file.h"
#include "src/workspace.h"

namespace wi {
namespace {

template <class Write>
void write_file(const std::string& path, const CancelToken* cancel, const Write& write) {
  throw_if_cancelled(flag_of(cancel));
  OutputFile file(path);
  write(file);
  throw_if_cancelled(flag_of(cancel));
  file.commit();
}

// A load of the file at a path: what is wrong with the file is said with the path, as what the system has against it.
// What is wrong with what was asked for is not the file's.
template <class Params, class Load>
auto load_named(const std::string& path, const std::function<Params(const Params&)>& choose,
                const Load& load) {
  bool choosing = false;
  try {
    InputFile file(path);
    return load(file, [&](const Params& saved) {
      choosing = true;
      Params chosen = choose(saved);
      choosing = false;
      return chosen;
    });
  } catch (const Error& error) {
    const bool of_file =
        error.code() == WI_E_FORMAT || error.code() == WI_E_UNSUPPORTED || error.code() == WI_E_MISMATCH;
    if (!of_file || choosing || std::string_view(error.what()).starts_with(path + ": ")) throw;
    throw_error(error.code(), concat(path, ": ", error.what()), error.native_code());
  }
}

ModelIdentity identity_of(const Model& model, Runtime& runtime, const CancelToken* cancel) {
  return {model.weights_hash(runtime.workers, flag_of(cancel)), 0};
}
void check_same(const SavedParams& saved, DType kv, const Policy& policy, const PolicyParams& params);
// Room for so many bytes more in a sequence, beside another one that it is made of (null: none).
using MakeRoom = std::function<void(const Sequence& sequence, uint64_t bytes, const Sequence* from)>;
// Whether all was indexed anew.
bool fill(SessionFile& file, Runtime& runtime, const Policy& policy, const PolicyParams& params, Sequence& to,
          const InputFile* place, const CancelToken* cancel, const MakeRoom& make_room);

}  // namespace

// ---- sessions ----

void Session::write(ByteSink& to, const CancelToken* cancel) const {
  SessionImage own = image();
  own.model = identity_of(*model_, *runtime_, cancel);
  write_session_file(to, saved_params(), sequence_, &own, runtime_->buffer.get(), flag_of(cancel));
}

void Session::write(const std::string& path, const CancelToken* cancel) const {
  write_file(path, cancel, [&](ByteSink& to) { write(to, cancel); });
}

uint64_t Session::written_bytes() const {
  const SessionImage own = image();  // an identity is as long whatever it is, and takes reading all weights
  return session_file_bytes(saved_params(), sequence_, &own);
}

std::shared_ptr<Session> Session::load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       const std::string& path, const Choice& choose,
                                       const CancelToken* cancel) {
  return load_named(path, choose, [&](InputFile& file, const Choice& chosen) {
    return load(std::move(runtime), std::move(model), file, &file, chosen, cancel);
  });
}

std::shared_ptr<Session> Session::load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       ByteSource& from, const Choice& choose, const CancelToken* cancel) {
  return load(std::move(runtime), std::move(model), from, nullptr, choose, cancel);
}

std::shared_ptr<Session> Session::load(std::shared_ptr<Runtime> runtime, std::shared_ptr<const Model> model,
                                       ByteSource& from, const InputFile* place, const Choice& choose,
                                       const CancelToken* cancel) {
  SessionFile file(from, FileKind::session, runtime->backend, flag_of(cancel));
  const ModelConfig& config = model->config;
  const SavedParams& saved = file.params();
  SessionImage& image = file.image();
  const KvShape shape = kv_shape_of(*model, saved.shape.dtype);
  // What costs nothing to compare first: the identity reads every weight once.
  check(image.vocab == config.vocab && saved.shape.same_sizes(shape) &&
            saved.query_heads == config.query_heads && image.model == identity_of(*model, *runtime, cancel),
        WI_E_MISMATCH, "the file was saved with another model");

  check_policy_params(saved.policy_params, WI_E_FORMAT, "the file's ");
  const Sampler sampler = sampler_of(image.sampler, config.vocab);
  SessionParams as_saved;
  as_saved.policy = saved.policy;
  as_saved.policy_params = saved.policy_params;
  as_saved.kv = saved.shape.dtype;
  as_saved.sampling = sampler.params();
  as_saved.kv_budget_bytes = saved.kv_budget_bytes;
  as_saved.sparse_read_tokens = saved.sparse_read_tokens;
  as_saved.prefix_reuse = saved.prefix_reuse;
  const SessionParams params = choose(as_saved);
  check_same(saved, params.kv, *params.policy, params.policy_params);

  std::shared_ptr<Session> session(new Session(std::move(runtime), std::move(model), params));
  const MakeRoom make_room = [&](const Sequence& sequence, uint64_t bytes, const Sequence* from) {
    session->make_room_to_load(sequence, bytes, from, flag_of(cancel));
  };
  bool anew = false;
  session->or_refused([&] {
    anew = fill(file, *session->runtime_, *params.policy, session->params_.policy_params, session->sequence_,
                place, cancel, make_room);
  });
  session->rest();
  session->tokens_.append(image.tokens);
  session->exact_ = std::move(image.exact);
  session->computed_here_ = false;
  if (!image.logits.empty()) session->logits_ = std::make_shared<std::vector<float>>(std::move(image.logits));
  if (image.prompt_end > 0) {
    session->prompt_logits_ = image.prompt_logits.empty()
                                  ? session->logits_
                                  : std::make_shared<std::vector<float>>(std::move(image.prompt_logits));
    session->logits_shared_ = image.prompt_logits.empty();
    session->prompt_end_ = image.prompt_end;
    session->prompt_sealed_end_ = image.prompt_sealed_end;
  }
  const bool goes_on = !anew && params.policy_params.local_window == saved.policy_params.local_window;
  if (goes_on && image.grows_from >= 0)
    session->grows_from_ = {image.grows_from, image.grows_from_sealed_end};
  else if (goes_on && image.prompt_end > 0)
    session->grows_from_ = {image.prompt_end, image.prompt_sealed_end};
  else
    session->grows_from_ = session->sealed_now();
  // The file's sampler goes on where it was, unless the loader brings its own.
  if (!params.sampling_given) session->sampler_ = sampler;
  session->text_.restore(std::move(image.pending_bytes));
  session->publish_stats();
  return session;
}

void Session::make_room_to_load(const Sequence& sequence, uint64_t bytes, const Sequence* from,
                                const std::atomic<bool>* cancel) {
  if (!resident_ || bytes == 0) return;
  refused_ = nullptr;
  make_room_of(sequence, bytes, SealWhen::prefilling, {!Use::reading_here()}, cancel, from);
}

SavedParams Session::saved_params() const {
  SavedParams params;
  params.shape = sequence_.shape();
  params.query_heads = model_->config.query_heads;
  params.policy = params_.policy;
  params.policy_params = params_.policy_params;
  params.kv_budget_bytes = params_.kv_budget_bytes;
  params.sparse_read_tokens = params_.sparse_read_tokens;
  params.prefix_reuse = params_.prefix_reuse;
  return params;
}

// But for the model's identity.
SessionImage Session::image() const {
  SessionImage image;
  image.vocab = model_->config.vocab;
  image.tokens.resize(static_cast<size_t>(tokens_.size()));
  tokens_.copy(0, image.tokens);
  image.exact = exact_;
  if (logits_) image.logits = *logits_;
  if (prompt_logits_) {
    image.prompt_end = prompt_end_;
    image.prompt_sealed_end = prompt_sealed_end_;
    if (prompt_logits_ != logits_) image.prompt_logits = *prompt_logits_;
  }
  if (!prompt_logits_ || grows_from_ != SealedAt{prompt_end_, prompt_sealed_end_}) {
    image.grows_from = grows_from_.tokens;
    image.grows_from_sealed_end = grows_from_.sealed_end;
  }
  image.sampler = sampler_fields(sampler_);
  image.pending_bytes = text_.pending();
  return image;
}

// ---- KV stores ----

void KvStore::write(ByteSink& to, const CancelToken* cancel) const {
  write_session_file(to, saved_params(), sequence_, nullptr, runtime_->buffer.get(), flag_of(cancel));
}

void KvStore::write(const std::string& path, const CancelToken* cancel) const {
  write_file(path, cancel, [&](ByteSink& to) { write(to, cancel); });
}

uint64_t KvStore::written_bytes() const { return session_file_bytes(saved_params(), sequence_, nullptr); }

std::shared_ptr<KvStore> KvStore::load(std::shared_ptr<Runtime> runtime, const std::string& path,
                                       const Choice& choose, const CancelToken* cancel) {
  return load_named(path, choose, [&](InputFile& file, const Choice& chosen) {
    return load(std::move(runtime), file, &file, chosen, cancel);
  });
}

std::shared_ptr<KvStore> KvStore::load(std::shared_ptr<Runtime> runtime, ByteSource& from,
                                       const Choice& choose, const CancelToken* cancel) {
  return load(std::move(runtime), from, nullptr, choose, cancel);
}

std::shared_ptr<KvStore> KvStore::load(std::shared_ptr<Runtime> runtime, ByteSource& from,
                                       const InputFile* place, const Choice& choose,
                                       const CancelToken* cancel) {
  SessionFile file(from, FileKind::kv, runtime->backend, flag_of(cancel));
  const SavedParams& saved = file.params();
  check_policy_params(saved.policy_params, WI_E_FORMAT, "the file's ");
  const KvStoreParams params =
      choose({saved.shape, saved.query_heads, saved.policy, saved.policy_params, saved.kv_budget_bytes});
  const auto match = [](const char* what, int32_t in_file, int32_t wanted) {
    check(in_file == wanted, WI_E_MISMATCH, what, " is ", in_file, " in the file, asked for is ", wanted);
  };
  match("layers", saved.shape.layers, params.shape.layers);
  match("query_heads", saved.query_heads, params.query_heads);
  match("kv_heads", saved.shape.kv_heads, params.shape.kv_heads);
  match("head_dim", saved.shape.head_dim, params.shape.head_dim);
  check_same(saved, params.shape.dtype, *params.policy, params.policy_params);

  auto store = std::make_shared<KvStore>(std::move(runtime), params);
  const MakeRoom make_room = [&](const Sequence& sequence, uint64_t bytes, const Sequence* from) {
    store->refused_ = nullptr;
    if (bytes) store->make_room(sequence, bytes, true, flag_of(cancel), from);
  };
  or_refused(store->refused_, [&] {
    fill(file, *store->runtime_, *params.policy, store->params_.policy_params, store->sequence_, place,
         cancel, make_room);
  });
  store->rest();
  std::fill(store->written_.begin(), store->written_.end(), store->sequence_.tokens());
  store->publish_stats();
  return store;
}

SavedParams KvStore::saved_params() const {
  SavedParams params;
  params.shape = params_.shape;
  params.query_heads = params_.query_heads;
  params.policy = params_.policy;
  params.policy_params = params_.policy_params;
  params.kv_budget_bytes = params_.kv_budget_bytes;
  return params;
}

namespace {

// ---- what both share ----

// What shapes the index must be what was saved; the rest is the loader's choice.
void check_same(const SavedParams& saved, DType kv, const Policy& policy, const PolicyParams& params) {
  check(kv == saved.shape.dtype, WI_E_MISMATCH, "kv_type is ", format_of(saved.shape.dtype).name,
        " in the file, asked for is ", format_of(kv).name);
  check(&policy == saved.policy, WI_E_MISMATCH, "the file was saved with policy \"", saved.policy->name,
        "\", asked for is \"", policy.name, "\"");
  const auto match = [](const char* what, int32_t in_file, int32_t wanted) {
    check(in_file == wanted, WI_E_MISMATCH, what, " is ", in_file, " in the file, asked for is ", wanted);
  };
  const PolicyParams& own = saved.policy_params;
  match("segment_tokens", own.segment_tokens, params.segment_tokens);
  match("decode_segment_tokens", own.decode_segment_tokens, params.decode_segment_tokens);
  match("tokens_per_centroid", own.tokens_per_centroid, params.tokens_per_centroid);
  match("kmeans_iterations", own.kmeans_iterations, params.kmeans_iterations);
  match("max_cluster_tokens", own.max_cluster_tokens, params.max_cluster_tokens);
}

// Keys, values and indexes; an index of another version is built anew from the keys. Of segments, keys and values
// stay in the file `place`, if there is one and a slow tier to read them with.
bool fill(SessionFile& file, Runtime& runtime, const Policy& policy, const PolicyParams& params, Sequence& to,
          const InputFile* place, const CancelToken* cancel, const MakeRoom& make_room) {
  bool anew = false;
  runtime.workers.run(flag_of(cancel), [&](const Stream& stream) {
    Sequence read = to;
    const bool reads_files = runtime.buffer && runtime.buffer->file();
    const InPlace in_place{place && reads_files ? runtime.buffer.get() : nullptr, place};
    const auto before = [&](const Sequence& so_far, uint64_t bytes) { make_room(so_far, bytes, nullptr); };
    if (!file.read_sequence(read, stream, in_place, before)) {
      to = std::move(read);
      return;
    }
    anew = true;
    std::optional<WaveBuffer::Reading> reading(runtime.buffer.get());
    SealContext context{runtime.backend, policy, params, stream, {}, nullptr};
    const auto workspace = runtime.workspace();
    context.queue = workspace->indexing();
    context.before_tokens = [&](int64_t tokens) {
      const auto count = static_cast<int32_t>(tokens);
      const uint64_t kv_bytes = static_cast<uint64_t>(tokens + kBlockTokens) * to.shape().token_bytes();
      reading.reset();
      if (count)
        make_room(to,
                  kv_bytes + making_bytes(to.shape(), index_size(to.shape(), policy, params, count), count),
                  &read);
      reading.emplace(runtime.buffer.get());
      read.refresh();
    };
    read.refresh();
    reindex(read, context, to);
    throw_if_cancelled(stream);
  });
  return anew;
}

}  // namespace
}  // namespace wi
