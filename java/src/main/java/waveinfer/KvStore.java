package waveinfer;

import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A KV cache alone, for hosts that have model code of their own: give it keys and values per layer,
 * get attention back, with the same segments and policies as a session. {@link
 * WaveRuntime#newKvStore} makes one. Buffers are read and written from their position on, which
 * stays where it is; of direct ones in native byte order nothing is copied. One thread at a time;
 * {@link #stats} any thread.
 */
public final class KvStore extends Handle {
  private final KvParams shape;

  KvStore(long address, KvParams shape, AtomicBoolean taken) {
    super(address, Native::wi_kv_release, null, taken);
    this.shape = shape;
  }

  /**
   * Another handle of this store, which is closed on its own; the two are one store.
   *
   * @return a new one
   */
  public KvStore share() {
    try (Call call = Call.enter()) {
      return new KvStore(Native.wi_kv_retain(call.use(this)), shape, taken());
    }
  }

  /**
   * Appends tokens to one layer. Layers may be filled one after the other; a token belongs to the
   * store once every layer has it.
   *
   * @param layer in [0, layers)
   * @param tokens at most 2147483647
   * @param keys (tokens, kv_heads, head_dim) f32, finite, rotated; rounded to the KV type
   * @param values of the same shape
   * @throws WaveInferException.Argument if a number is not finite, or a buffer too small
   * @throws WaveInferException.Unsupported if a number is beyond the KV type
   * @throws WaveInferException.Budget if they are too many
   * @throws WaveInferException.Io if the disk of the slow tier fails
   */
  public void append(int layer, long tokens, FloatBuffer keys, FloatBuffer values) {
    FloatBuffer k = keys.duplicate(); // as in attend
    FloatBuffer v = values.duplicate();
    need("keys", k, tokens, shape.kvHeads);
    need("values", v, tokens, shape.kvHeads);
    try (Call call = Call.enter()) {
      long kv = call.alone(this);
      call.check(
          Native.wi_kv_append(kv, layer, tokens, call.floats(k), call.floats(v), call.error()));
    }
  }

  /**
   * Seals what can be sealed beyond the local window, cut as a prompt of so many tokens is cut.
   * Nothing is sealed without this call, and until then everything is attended exactly.
   *
   * @throws WaveInferException.State if layers have different numbers of tokens
   * @throws WaveInferException.Budget if there is no room for the index
   * @throws WaveInferException.Io of the slow tier, as {@link Session#prefill(java.nio.IntBuffer,
   *     PrefillParams, CancelToken)}
   * @throws WaveInferException.Format as there
   */
  public void seal() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_kv_seal(call.alone(this), call.error()));
    }
  }

  /**
   * Attention of queries over everything appended to a layer so far: softmax(q * k /
   * sqrt(head_dim)) * v. Every row sees the same tokens; causal order within a chunk is the host's.
   *
   * @param layer in [0, layers)
   * @param rows at most 2147483647
   * @param queries (rows, query_heads, head_dim) f32, rotated, not scaled
   * @param out gets (rows, query_heads, head_dim), normalised; unspecified after a failure
   * @param lseOut null, or gets (rows, query_heads) natural log of the sum of exponentials;
   *     unspecified after a failure
   * @param cancel ends the call; may be null
   * @throws WaveInferException.State if the layer is empty
   * @throws WaveInferException.Argument if a buffer is too small
   * @throws WaveInferException.Io of the slow tier, as {@link Session#prefill(java.nio.IntBuffer,
   *     PrefillParams, CancelToken)}
   * @throws WaveInferException.Format as there
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public void attend(
      int layer,
      long rows,
      FloatBuffer queries,
      FloatBuffer out,
      FloatBuffer lseOut,
      CancelToken cancel) {
    // With places and ends that are nobody else's.
    FloatBuffer q = queries.duplicate();
    FloatBuffer o = out.duplicate();
    FloatBuffer lse = lseOut == null ? null : lseOut.duplicate();
    need("queries", q, rows, shape.queryHeads);
    need("out", o, rows, shape.queryHeads);
    if (lse != null) need("lseOut", lse, rows, shape.queryHeads, 1);
    try (Call call = Call.cancellable(cancel)) {
      long kv = call.alone(this);
      call.check(
          Native.wi_kv_attend(
              kv,
              layer,
              rows,
              call.floats(q),
              call.cancel(),
              call.floatsOut(o, () -> rows * shape.queryHeads * shape.headDim),
              lse == null ? 0 : call.floatsOut(lse, () -> rows * shape.queryHeads),
              call.error()));
    }
  }

  private void need(String name, FloatBuffer buffer, long rows, int heads) {
    need(name, buffer, rows, heads, shape.headDim);
  }

  /** C takes an address and trusts it. */
  private static void need(String name, FloatBuffer buffer, long rows, int heads, int dim) {
    if (rows < 0 || rows > buffer.remaining() / ((long) heads * dim)) {
      throw new WaveInferException.Argument(
          0,
          name
              + " has "
              + buffer.remaining()
              + " floats, too few for "
              + rows
              + " rows of "
              + heads
              + " heads of "
              + dim);
    }
  }

  /**
   * As {@link Session#fork}.
   *
   * @return a new one
   */
  public KvStore fork() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_kv_fork(call.alone(this), call.out(), call.error()));
      return new KvStore(call.outLong(), shape, new AtomicBoolean());
    }
  }

  /**
   * Cuts the store back to its first tokens, in every layer; what only some layers have goes too.
   *
   * @param tokens at most the store's
   * @throws WaveInferException.Argument if it has fewer
   * @throws WaveInferException.Budget if there is no room for what is left of a cut segment
   * @throws WaveInferException.Io of the slow tier, as {@link Session#prefill(java.nio.IntBuffer,
   *     PrefillParams, CancelToken)}
   * @throws WaveInferException.Format as there
   */
  public void truncate(long tokens) {
    try (Call call = Call.enter()) {
      call.check(Native.wi_kv_truncate(call.alone(this), tokens, call.error()));
    }
  }

  /**
   * As {@link Session#stats}; fields about prefill, weights and prefixes stay 0.
   *
   * @return numbers
   */
  public SessionStats stats() {
    try (Call call = Call.enter()) {
      wi_session_stats stats = call.own(new wi_session_stats());
      call.check(Native.wi_kv_get_stats(call.use(this), stats.address(), call.error()));
      return SessionStats.of(stats);
    }
  }

  /**
   * Writes the store to a file, as {@link Session#save(Path, CancelToken)}.
   *
   * @param path what is there, if anything, must be a regular file
   * @param cancel ends the call; may be null
   * @throws WaveInferException.State if layers have different numbers of tokens
   * @throws WaveInferException as {@link Session#save(Path, CancelToken)}
   */
  public void save(Path path, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long kv = call.alone(this);
      call.check(Native.wi_kv_save(kv, call.path(path), call.cancel(), call.error()));
    }
  }

  /**
   * Writes the same bytes to a channel.
   *
   * @param to a channel in blocking mode
   * @param cancel ends the call; may be null
   * @throws IOException what the channel throws
   * @throws WaveInferException.State if layers have different numbers of tokens
   * @throws WaveInferException as {@link Session#save(WritableByteChannel, CancelToken)}
   */
  public void save(WritableByteChannel to, CancelToken cancel) throws IOException {
    try (Call call = Call.cancellable(cancel)) {
      long kv = call.alone(this);
      call.checkIo(Native.wi_kv_save_to(kv, Sink.writer(call, to), call.cancel(), call.error()));
    }
  }

  /**
   * Bytes that a save of the store as it is now takes.
   *
   * @return bytes
   * @throws WaveInferException.State if layers have different numbers of tokens
   */
  public long savedBytes() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_kv_saved_bytes(call.alone(this), call.out(), call.error()));
      return call.outLong();
    }
  }
}
