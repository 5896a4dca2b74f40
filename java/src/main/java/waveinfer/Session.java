package waveinfer;

import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/**
 * One token sequence with its KV cache and its sampler. {@link Model#newSession()} makes one. One
 * thread at a time, not always the same one; {@link #stats} any thread.
 */
public final class Session extends Handle implements Iterable<Event> {
  private final Hooks hooks;

  Session(long address, Object keep, Hooks hooks) {
    this(address, keep, hooks, new AtomicBoolean());
  }

  private Session(long address, Object keep, Hooks hooks, AtomicBoolean taken) {
    super(address, Native::wi_session_release, keep, taken);
    this.hooks = hooks;
  }

  /**
   * Another handle of this session, which is closed on its own; the two are one session.
   *
   * @return a new one
   */
  public Session share() {
    try (Call call = Call.enter()) {
      return new Session(Native.wi_session_retain(call.use(this)), kept(), hooks, taken());
    }
  }

  // ---------------------------------------- Reading ----------------------------------------

  /**
   * Appends tokens with all defaults.
   *
   * @param tokens as of {@link #prefill(IntBuffer, PrefillParams, CancelToken)}
   */
  public void prefill(int... tokens) {
    prefill(IntBuffer.wrap(tokens), null, null);
  }

  /**
   * Appends tokens.
   *
   * @param tokens as of {@link #prefill(IntBuffer, PrefillParams, CancelToken)}
   * @param params how; null: all defaults
   * @param cancel ends the call; may be null
   */
  public void prefill(int[] tokens, PrefillParams params, CancelToken cancel) {
    prefill(IntBuffer.wrap(tokens), params, cancel);
  }

  /**
   * Appends tokens and computes their keys and values, in chunks. Calling it in pieces gives the
   * same as calling it once.
   *
   * @param tokens ids in [0, vocab), from position to limit
   * @param params how; null: all defaults
   * @param cancel ends the call; may be null
   * @throws WaveInferException.Argument for a token that is none; then and after any other failure
   *     the session is as it was
   * @throws WaveInferException.Unsupported if keys or values are beyond the KV type, or the session
   *     would be longer than {@link ModelInfo#maxPositions} where that is enforced
   * @throws WaveInferException.Budget if they are too many
   * @throws WaveInferException.Io if the disk of the slow tier fails
   * @throws WaveInferException.Format if the file that the session was loaded from was damaged
   *     meanwhile
   * @throws WaveInferException.Cancelled by an interrupt or the token, within 100 ms
   */
  public void prefill(IntBuffer tokens, PrefillParams params, CancelToken cancel) {
    IntBuffer ids = tokens.duplicate(); // with a place and an end that are nobody else's
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.check(
          Native.wi_session_prefill(
              session,
              call.ints(ids),
              ids.remaining(),
              PrefillParams.write(params, call, session),
              call.cancel(),
              call.error()));
    }
  }

  /**
   * Tokenises text and appends it, with all defaults.
   *
   * @param text any
   * @param flags how it becomes tokens
   */
  public void append(String text, TokenizeFlag... flags) {
    append(text, null, null, flags);
  }

  /**
   * Tokenises text and appends it.
   *
   * @param text any
   * @param params how it is read; null: all defaults
   * @param cancel ends the call; may be null
   * @param flags how it becomes tokens
   * @throws WaveInferException as {@link Model#tokenize(String, TokenizeFlag...)} and {@link
   *     #prefill(IntBuffer, PrefillParams, CancelToken)}
   */
  public void append(String text, PrefillParams params, CancelToken cancel, TokenizeFlag... flags) {
    byte[] bytes = Texts.bytes(text);
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.check(
          Native.wi_session_append_text(
              session,
              call.copy(bytes),
              bytes.length,
              TokenizeFlag.bits(flags),
              PrefillParams.write(params, call, session),
              call.cancel(),
              call.error()));
    }
  }

  // ---------------------------------------- Writing ----------------------------------------

  /**
   * Appends one token, sampled from the logits of the last one.
   *
   * @return the token and its text
   * @see #decode(CancelToken)
   */
  public Event decode() {
    return decode(null);
  }

  /**
   * Appends one token, sampled from the logits of the last one. It is pending: its own keys and
   * values are computed by the next call that needs them. A token that ends the answer is an event
   * of kind {@link Event.Kind#END}; it is in the session like any other, and the host may go on.
   *
   * @param cancel ends the call; may be null
   * @return the token and its text
   * @throws WaveInferException.State if the session is empty, or no token is left to sample
   * @throws WaveInferException.Unsupported if the token before has keys or values beyond the KV
   *     type, or is beyond {@link ModelInfo#maxPositions} where that is enforced
   * @throws WaveInferException.Budget if there is no room for it; then and after any other failure
   *     no token is lost and none is added
   * @throws WaveInferException.Io of the slow tier, as {@link #prefill(IntBuffer, PrefillParams,
   *     CancelToken)}
   * @throws WaveInferException.Format as there
   * @throws WaveInferException.Cancelled by an interrupt or the token, within one layer
   */
  public Event decode(CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.check(
          Native.wi_session_decode(session, call.cancel(), call.event.address(), call.error()));
      return Event.of(call.event);
    }
  }

  /**
   * An answer as it is decoded: each step of the stream is one {@link #decode()}. It ends with the
   * first event that is not a {@link Event.Kind#TOKEN}, which is its last. What is not consumed is
   * not decoded; nothing needs closing.
   *
   * @return events, in order
   */
  public Stream<Event> events() {
    return EventIterator.stream(iterator());
  }

  /**
   * The same as an iterator.
   *
   * @return events, in order
   */
  @Override
  public Iterator<Event> iterator() {
    return new EventIterator(this::decode);
  }

  /**
   * Appends one token that the host chose, exactly as decode appends one that it sampled. With
   * {@link #logits()} this is decode with a sampler of one's own.
   *
   * @param token in [0, vocab)
   * @param cancel ends the call; may be null
   * @return the token and its text
   * @throws WaveInferException as {@link #decode(CancelToken)}
   */
  public Event accept(int token, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.check(
          Native.wi_session_accept(
              session, token, call.cancel(), call.event.address(), call.error()));
      return Event.of(call.event);
    }
  }

  /**
   * Logits of the last token, those that decode would sample from; computes them first if it is
   * pending.
   *
   * @return (vocab) f32
   * @throws WaveInferException as {@link #decode(CancelToken)}
   */
  public float[] logits() {
    try (Call call = Call.enter()) {
      long session = call.alone(this);
      call.check(Native.wi_session_logits(session, 0, 0, 0, call.out(), call.error()));
      float[] logits = new float[Math.toIntExact(call.outLong())];
      logits(FloatBuffer.wrap(logits), null, session);
      return logits;
    }
  }

  /**
   * Logits of the last token, into a buffer of the host's from its position on; a direct one in
   * native byte order is written in place.
   *
   * @param to with room for at least vocab floats; unspecified after a failure
   * @param cancel ends the call; may be null
   * @return how many were written: vocab
   * @throws WaveInferException as {@link #decode(CancelToken)}
   */
  public int logits(FloatBuffer to, CancelToken cancel) {
    try (Call call = Call.enter()) {
      return logits(to, cancel, call.alone(this));
    }
  }

  private static int logits(FloatBuffer given, CancelToken cancel, long session) {
    FloatBuffer to = given.duplicate(); // as in prefill
    try (Call call = Call.cancellable(cancel)) {
      call.check(
          Native.wi_session_logits(
              session,
              call.cancel(),
              call.floatsOut(to, call::outLong),
              to.remaining(),
              call.out(),
              call.error()));
      return (int) call.outLong();
    }
  }

  /**
   * Replaces the sampling parameters and starts their random numbers anew from the seed.
   *
   * @param sampling how tokens are picked; null: greedy
   * @throws WaveInferException.Argument for a logit bias of a token beyond the vocabulary
   */
  public void setSampling(SamplingParams sampling) {
    try (Call call = Call.enter()) {
      long session = call.alone(this);
      long how = SamplingParams.write(sampling, call);
      call.check(Native.wi_session_set_sampling(session, how, call.error()));
      hooks.set(call.logitsHook);
    }
  }

  /**
   * Hands the session and a prompt to the runtime, which works on it by itself; the call returns at
   * once. Until the task has ended, calls on the session are {@link WaveInferException.Busy},
   * statistics excepted; the session may be closed all the same.
   *
   * @param params the prompt and more; null: goes on from what the session has
   * @return a new task; closing it cancels it
   * @throws WaveInferException.Busy if the session is in use, by a task too
   * @throws WaveInferException.State if it is empty and there is no prompt
   */
  public Task submit(TaskParams params) {
    Task.Bell bell = params == null ? null : Task.Bell.of(params.whenReady());
    boolean made = false;
    try (Call call = Call.enter()) {
      long session = call.alone(this);
      long how = TaskParams.write(params, call, bell);
      call.check(Native.wi_task_submit(session, how, call.out(), call.error()));
      boolean anew = params != null && params.setsSampling();
      Hooks.Setting setting = anew ? hooks.add(call.logitsHook) : null;
      Task task = new Task(call.outLong(), kept(), hooks, setting, call.logitsHook, bell);
      made = true;
      return task;
    } finally {
      if (bell != null && !made) Callbacks.remove(bell.id());
      Reference.reachabilityFence(bell);
    }
  }

  // ---------------------------------------- The sequence ----------------------------------------

  /**
   * The ids of all tokens, the pending one included.
   *
   * @return a copy
   */
  public int[] tokens() {
    try (Call call = Call.enter()) {
      long session = call.alone(this);
      return call.ids(
          0,
          (ids, capacity, count) ->
              Native.wi_session_tokens(session, ids, capacity, count, call.error()));
    }
  }

  /**
   * How many tokens there are, the pending one included.
   *
   * @return tokens in the session
   */
  public long tokenCount() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_session_tokens(call.alone(this), 0, 0, call.out(), call.error()));
      return call.outLong();
    }
  }

  /**
   * A second session that goes on from here on its own: same tokens, parameters, logits and sampler
   * state. It shares everything sealed; takes microseconds. The two may be used by two threads at
   * once.
   *
   * @return a new one
   */
  public Session fork() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_session_fork(call.alone(this), call.out(), call.error()));
      return new Session(call.outLong(), kept(), hooks.copy());
    }
  }

  /**
   * A fork under other parameters: the same tokens, keys, values and logits, read through another
   * policy or another budget, without computing the prompt again.
   *
   * @param params how; without sampling the sampler goes on where it is, and without a KV type it
   *     is the session's; what else is not given is the default, not the session's
   * @param cancel ends the call; may be null
   * @return a new one
   * @throws WaveInferException.Argument if the KV type is another than the session's
   * @throws WaveInferException.Unsupported for an unknown policy
   * @throws WaveInferException.Budget if it is too large
   * @throws WaveInferException.Io of the slow tier, as {@link #prefill(IntBuffer, PrefillParams,
   *     CancelToken)}
   * @throws WaveInferException.Format as there
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public Session forkAs(SessionParams params, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      long how = SessionParams.write(params, call);
      call.check(Native.wi_session_fork_as(session, how, call.cancel(), call.out(), call.error()));
      Hooks inherited =
          SessionParams.setSampling(params) ? new Hooks(call.logitsHook) : hooks.copy();
      return new Session(call.outLong(), kept(), inherited);
    }
  }

  /**
   * Cuts the session back to its first tokens. The new last one is pending. Where the last prefill
   * ended, the session is as it was then, bit for bit.
   *
   * @param tokens at most the session's
   * @throws WaveInferException.Argument if it has fewer; then and after any other failure the
   *     session is as it was
   * @throws WaveInferException.Budget if there is no room for what is left of a cut segment
   * @throws WaveInferException.Memory if the system has none: for a moment that segment and what is
   *     left of it are both held
   * @throws WaveInferException.Io of the slow tier, as {@link #prefill(IntBuffer, PrefillParams,
   *     CancelToken)}
   * @throws WaveInferException.Format as there
   */
  public void truncate(long tokens) {
    try (Call call = Call.enter()) {
      call.check(Native.wi_session_truncate(call.alone(this), tokens, call.error()));
    }
  }

  /**
   * What the session has done, as of the end of its last call. Any thread, also while a call is
   * running.
   *
   * @return numbers
   */
  public SessionStats stats() {
    try (Call call = Call.enter()) {
      wi_session_stats stats = call.own(new wi_session_stats());
      call.check(Native.wi_session_get_stats(call.use(this), stats.address(), call.error()));
      return SessionStats.of(stats);
    }
  }

  // ---------------------------------------- Saving ----------------------------------------

  /**
   * Writes the session to a file.
   *
   * @param path as of {@link #save(Path, CancelToken)}
   */
  public void save(Path path) {
    save(path, null);
  }

  /**
   * Writes the session to a file: tokens, KV, index, sampler, parameters; checksummed. The file
   * appears whole or not at all; an older file survives any failure.
   *
   * @param path what is there, if anything, must be a regular file
   * @param cancel ends the call; may be null
   * @throws WaveInferException.Io if it cannot be written
   * @throws WaveInferException.Format if the file that the session was loaded from was damaged
   *     meanwhile
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public void save(Path path, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.check(Native.wi_session_save(session, call.path(path), call.cancel(), call.error()));
    }
  }

  /**
   * Writes the same bytes to a channel; after a failure what was written is of no use.
   *
   * @param to a channel in blocking mode
   * @param cancel ends the call; may be null
   * @throws IOException what the channel throws
   * @throws WaveInferException.Io of the slow tier
   * @throws WaveInferException.Format as {@link #save(Path, CancelToken)}
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public void save(WritableByteChannel to, CancelToken cancel) throws IOException {
    try (Call call = Call.cancellable(cancel)) {
      long session = call.alone(this);
      call.checkIo(
          Native.wi_session_save_to(session, Sink.writer(call, to), call.cancel(), call.error()));
    }
  }

  /**
   * Bytes that a save of the session as it is now takes.
   *
   * @return bytes
   */
  public long savedBytes() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_session_saved_bytes(call.alone(this), call.out(), call.error()));
      return call.outLong();
    }
  }

  // ---------------------------------------- Many at once ----------------------------------------

  /**
   * One {@link #decode()} for each of many sessions in one step, so that weights are read once for
   * all of them. Every session gets the token that it would have got alone.
   *
   * @param sessions of one model, each at most once; none does nothing
   * @param cancel ends the call; may be null
   * @return an event of each, in their order
   * @throws WaveInferException as {@link #decode(CancelToken)}, for the batch as a whole: if one
   *     session fails, no session changes, and the message begins with which one, as "sessions[3]:
   *     "
   */
  public static List<Event> decodeBatch(List<Session> sessions, CancelToken cancel) {
    return Batch.decode(List.copyOf(sessions), cancel);
  }
}
