package waveinfer;

import java.io.IOException;
import java.nio.IntBuffer;
import java.nio.channels.ReadableByteChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Weights, tokenizer and hyper-parameters; immutable. {@link WaveRuntime#open(Path)} opens one.
 * What it is made of stays while a session of it lives. All threads.
 */
public final class Model extends Handle {
  /** The memory that the weights lie in is kept until all that uses it is released. */
  Model(long address, Object memory) {
    super(address, Native::wi_model_release, memory, new AtomicBoolean());
  }

  /**
   * Another handle of this model, which is closed on its own.
   *
   * @return a new one
   */
  public Model share() {
    try (Call call = Call.enter()) {
      return new Model(Native.wi_model_retain(call.use(this)), kept());
    }
  }

  /**
   * The model's hyper-parameters.
   *
   * @return all of them
   */
  public ModelInfo info() {
    try (Call call = Call.enter()) {
      wi_model_info info = call.own(new wi_model_info());
      call.check(Native.wi_model_get_info(call.use(this), info.address(), call.error()));
      return ModelInfo.of(info);
    }
  }

  // ---------------------------------------- What its files say
  // ----------------------------------------

  /**
   * What the model's files say, by key. A GGUF's keys are its own ("general.name",
   * "tokenizer.chat_template"); a directory has config.json's, and those two.
   *
   * @param key one of {@link #metadataKeys}
   * @return a string as it is, everything else as JSON; empty if there is no such key
   */
  public Optional<String> metadata(String key) {
    try (Call call = Call.enter()) {
      long model = call.use(this);
      long name = call.name(key);
      return Optional.of(
          Texts.of(
              call.bytes(
                  256,
                  (text, capacity, length) ->
                      Native.wi_model_get_metadata(
                          model, name, text, capacity, length, call.error()))));
    } catch (WaveInferException.Argument e) {
      return Optional.empty();
    }
  }

  /**
   * All keys of {@link #metadata}.
   *
   * @return in the order of the file
   */
  public List<String> metadataKeys() {
    try (Call call = Call.enter()) {
      long model = call.use(this);
      call.check(Native.wi_model_metadata_count(model, call.out(), call.error()));
      long count = call.outLong();
      List<String> keys = new ArrayList<>((int) count);
      for (long i = 0; i < count; i++) {
        long index = i;
        keys.add(
            Texts.of(
                call.bytes(
                    64,
                    (text, capacity, length) ->
                        Native.wi_model_metadata_key(
                            model, index, text, capacity, length, call.error()))));
      }
      return List.copyOf(keys);
    }
  }

  /**
   * One token of the vocabulary.
   *
   * @param token in [0, vocab)
   * @return what it is
   * @throws WaveInferException.Argument for a token that is none
   */
  public TokenInfo tokenInfo(int token) {
    try (Call call = Call.enter()) {
      wi_token_info info = call.own(new wi_token_info());
      call.check(Native.wi_model_token_info(call.use(this), token, info.address(), call.error()));
      return TokenInfo.of(token, info);
    }
  }

  // ---------------------------------------- Text and tokens
  // ----------------------------------------

  /**
   * Text to token ids: those that the model was trained with. Nothing but BOS is ever put before or
   * behind the text.
   *
   * @param text any
   * @param flags how
   * @return ids in [0, vocab)
   * @throws WaveInferException.Unsupported where the file's own pattern takes too many steps
   */
  public int[] tokenize(String text, TokenizeFlag... flags) {
    return tokenize(Texts.bytes(text), flags);
  }

  /**
   * The same of bytes, which need not be UTF-8.
   *
   * @param text any bytes
   * @param flags how
   * @return ids in [0, vocab)
   * @throws WaveInferException.Argument for a byte that is no UTF-8, if the vocabulary has neither
   *     that byte nor an unknown token
   */
  public int[] tokenize(byte[] text, TokenizeFlag... flags) {
    try (Call call = Call.enter()) {
      long model = call.use(this);
      long bytes = call.copy(text);
      int bits = TokenizeFlag.bits(flags);
      return call.ids(
          text.length + 2L,
          (ids, capacity, count) ->
              Native.wi_model_tokenize(
                  model, bytes, text.length, bits, ids, capacity, count, call.error()));
    }
  }

  /**
   * Token ids to text, without control tokens; U+FFFD where a part of a sequence begins or ends
   * within a code point.
   *
   * @param tokens ids in [0, vocab)
   * @return their text
   * @throws WaveInferException.Argument for a token that is none
   */
  public String detokenize(int... tokens) {
    return Texts.of(detokenize(tokens, false));
  }

  /**
   * Token ids to bytes, the inverse of {@link #tokenize(byte[], TokenizeFlag...)}: the same bytes
   * come back, but where the file's tokenizer loses some.
   *
   * @param tokens ids in [0, vocab)
   * @param keepSpecial whether to write control tokens as their names; else they are left out
   * @return their bytes
   * @throws WaveInferException.Argument for a token that is none
   */
  public byte[] detokenize(int[] tokens, boolean keepSpecial) {
    try (Call call = Call.enter()) {
      long model = call.use(this);
      long ids = call.ints(IntBuffer.wrap(tokens));
      int flags = keepSpecial ? wi_detokenize_flag.WI_DETOKENIZE_KEEP_SPECIAL : 0;
      return call.bytes(
          8L * tokens.length,
          (text, capacity, length) ->
              Native.wi_model_detokenize(
                  model, ids, tokens.length, flags, text, capacity, length, call.error()));
    }
  }

  /**
   * Renders a conversation with the chat template of the model's file, as the text that the model
   * was trained on. To hand a conversation to a session take {@link #chatTokens}: in this text,
   * what a user wrote can no longer be told from what the template wrote.
   *
   * @param messages oldest first, at least one
   * @param params how
   * @return the text
   * @throws WaveInferException.Unsupported if the file has no template, or one that uses something
   *     that the library does not know, by name and line
   * @throws WaveInferException.Format for a template that is broken
   * @throws WaveInferException.Argument for a conversation that the template refuses, and for JSON
   *     that is none
   */
  public String chatRender(List<ChatMessage> messages, ChatParams params) {
    List<ChatMessage> turns = List.copyOf(messages);
    try (Call call = Call.enter()) {
      long model = call.use(this);
      long first = ChatMessage.write(turns, call);
      long how = ChatParams.write(params, call);
      return Texts.of(
          call.bytes(
              1024 + 2 * length(turns),
              (text, capacity, length) ->
                  Native.wi_model_chat_render(
                      model, first, turns.size(), how, text, capacity, length, call.error())));
    }
  }

  /**
   * Renders a conversation to token ids. Only the template's own text makes control tokens:
   * whatever messages say is text, also where it spells {@code <|end|>}. BOS is among the ids where
   * the template prints it, so nothing is to be added: pass them to {@link
   * Session#prefill(int...)}.
   *
   * @param messages oldest first, at least one
   * @param params how
   * @return ids in [0, vocab)
   * @throws WaveInferException as {@link #chatRender}
   */
  public int[] chatTokens(List<ChatMessage> messages, ChatParams params) {
    List<ChatMessage> turns = List.copyOf(messages);
    try (Call call = Call.enter()) {
      long model = call.use(this);
      long first = ChatMessage.write(turns, call);
      long how = ChatParams.write(params, call);
      return call.ids(
          1024 + length(turns),
          (ids, capacity, count) ->
              Native.wi_model_chat_tokens(
                  model, first, turns.size(), how, ids, capacity, count, call.error()));
    }
  }

  private static long length(List<ChatMessage> turns) {
    long length = 0;
    for (ChatMessage turn : turns) {
      length += turn.bytes();
    }
    return length;
  }

  // ---------------------------------------- Sessions ----------------------------------------

  /**
   * What a session of so many tokens would take, without making one.
   *
   * @param params of the session to be; null: all defaults
   * @param tokens prompt and answer together, at most 2147483647
   * @return bytes, and whether they fit
   */
  public MemoryPlan planMemory(SessionParams params, long tokens) {
    try (Call call = Call.enter()) {
      wi_memory_plan plan = call.own(new wi_memory_plan());
      long how = SessionParams.write(params, call);
      call.check(
          Native.wi_model_plan_memory(call.use(this), how, tokens, plan.address(), call.error()));
      return MemoryPlan.of(plan);
    }
  }

  /**
   * Makes an empty session with all defaults.
   *
   * @return a new one
   */
  public Session newSession() {
    return newSession(null);
  }

  /**
   * Makes an empty session. It takes memory only as tokens come.
   *
   * @param params how; null: all defaults
   * @return a new one
   * @throws WaveInferException.Unsupported for an unknown policy
   */
  public Session newSession(SessionParams params) {
    try (Call call = Call.enter()) {
      long how = SessionParams.write(params, call);
      call.check(Native.wi_session_create(call.use(this), how, call.out(), call.error()));
      return new Session(call.outLong(), kept(), new Hooks(call.logitsHook));
    }
  }

  /**
   * Reads a session back, all as saved.
   *
   * @param path as of {@link #load(Path, SessionParams, CancelToken)}
   * @return a new one
   */
  public Session load(Path path) {
    return load(path, null, null);
  }

  /**
   * Reads a session back. What params do not set, or set to zero, is as it was saved: policy and
   * each of its parameters, KV type, budget, sparse-read tokens, prefix reuse, sampler. What is set
   * must be as saved where it shapes what is stored (KV type, the policy's name, segment tokens,
   * decode segment tokens, tokens per centroid, k-means iterations), and applies where it does not.
   * As zero means "as saved", "none" is written so: a KV budget of -1; sparse-read tokens, and the
   * policy's local window, estimation, target mass and repeats, negative. Sampling is taken whole,
   * and its random numbers start from its seed; without it the saved sampler goes on where it was.
   * To read a session through another policy, load it and call {@link Session#forkAs}.
   *
   * <p>In a runtime with a slow tier its sealed keys and values stay in the file, which may be
   * renamed, removed or replaced, but not written into.
   *
   * @param path a regular file
   * @param params null: all as saved
   * @param cancel ends the call; may be null
   * @return a new one
   * @throws WaveInferException.Io if the file cannot be read
   * @throws WaveInferException.Format for a damaged or truncated file, or one that is no session
   * @throws WaveInferException.Unsupported for a policy, a sampler or a section that the library
   *     does not know
   * @throws WaveInferException.Mismatch for another model or other parameters
   * @throws WaveInferException.Budget if it is too large
   * @throws WaveInferException.Cancelled by an interrupt or the token
   */
  public Session load(Path path, SessionParams params, CancelToken cancel) {
    try (Call call = Call.cancellable(cancel)) {
      long how = SessionParams.write(params, call);
      call.check(
          Native.wi_session_load(
              call.use(this), call.path(path), how, call.cancel(), call.out(), call.error()));
      return new Session(call.outLong(), kept(), new Hooks(call.logitsHook));
    }
  }

  /**
   * Reads a session back from a channel, all of it into memory.
   *
   * @param from a channel where what was saved begins
   * @param bytes that it has
   * @param params as of {@link #load(Path, SessionParams, CancelToken)}
   * @param cancel ends the call; may be null
   * @return a new one
   * @throws IOException what the channel throws
   * @throws WaveInferException as {@link #load(Path, SessionParams, CancelToken)}
   */
  public Session load(
      ReadableByteChannel from, long bytes, SessionParams params, CancelToken cancel)
      throws IOException {
    try (Call call = Call.cancellable(cancel)) {
      long how = SessionParams.write(params, call);
      call.checkIo(
          Native.wi_session_load_from(
              call.use(this),
              Source.reader(call, from, bytes),
              how,
              call.cancel(),
              call.out(),
              call.error()));
      return new Session(call.outLong(), kept(), new Hooks(call.logitsHook));
    }
  }
}
