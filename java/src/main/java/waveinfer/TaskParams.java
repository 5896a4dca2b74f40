package waveinfer;

import java.nio.IntBuffer;

/** What a {@link Task} does. What is not set is the default. Copied by the call. */
public final class TaskParams {
  private int priority;
  private int[] tokens;
  private String text;
  private long maxTokens;
  private SamplingParams sampling;
  private Runnable whenReady;
  private int flags;

  /** All defaults. */
  public TaskParams() {}

  /**
   * Its share of the time: one more is twice as much.
   *
   * @param priority -8 to 8, higher first
   * @return this
   */
  public TaskParams priority(int priority) {
    this.priority = priority;
    return this;
  }

  /**
   * The prompt as tokens; instead of text.
   *
   * @param tokens ids in [0, vocab); null: none
   * @return this
   */
  public TaskParams tokens(int[] tokens) {
    this.tokens = tokens == null ? null : tokens.clone();
    return this;
  }

  /**
   * The prompt as text; instead of tokens. Without either the task goes on from what the session
   * has.
   *
   * @param text null: none
   * @return this
   */
  public TaskParams text(String text) {
    this.text = text;
    return this;
  }

  /**
   * Most tokens of the answer.
   *
   * @param maxTokens 0: until it ends; planned with 1024
   * @return this
   */
  public TaskParams maxTokens(long maxTokens) {
    this.maxTokens = maxTokens;
    return this;
  }

  /**
   * How tokens are picked, as by {@link Session#setSampling} at the start.
   *
   * @param sampling null: the session's goes on
   * @return this
   */
  public TaskParams sampling(SamplingParams sampling) {
    this.sampling = sampling;
    return this;
  }

  /**
   * Is told that the task has new events or has ended. Runs on the engine's thread, for which every
   * task waits: it should only wake somebody. What it throws cancels the task at the next poll, and
   * is thrown by that.
   *
   * @param whenReady null: nobody
   * @return this
   */
  public TaskParams whenReady(Runnable whenReady) {
    this.whenReady = whenReady;
    return this;
  }

  /**
   * How the text becomes tokens.
   *
   * @param flags of the text
   * @return this
   */
  public TaskParams tokenize(TokenizeFlag... flags) {
    this.flags = TokenizeFlag.bits(flags);
    return this;
  }

  static long write(TaskParams from, Call call, Task.Bell bell) {
    if (from == null) return 0;
    wi_task_params to = call.own(new wi_task_params());
    to.setPriority(from.priority);
    int[] tokens = from.tokens;
    if (tokens != null) {
      to.setTokens(call.ints(IntBuffer.wrap(tokens)));
      to.setToken_count(tokens.length);
    }
    String text = from.text;
    if (text != null) {
      byte[] bytes = Texts.bytes(text);
      to.setText(call.copy(bytes));
      to.setText_length(bytes.length);
      to.setTokenize_flags(from.flags);
    }
    to.setMax_tokens(from.maxTokens);
    to.setSampling(SamplingParams.write(from.sampling, call));
    if (bell != null) {
      to.setNotify(Native.callback(Callbacks.NOTIFIED));
      to.setNotify_user(bell.id());
    }
    return to.address();
  }

  Runnable whenReady() {
    return whenReady;
  }

  boolean setsSampling() {
    return sampling != null;
  }
}
