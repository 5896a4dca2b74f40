package waveinfer;

import java.nio.FloatBuffer;
import java.util.function.LongSupplier;

/** How tokens are read. What is not set is the default. Copied by the call. */
public final class PrefillParams {
  private int chunkTokens;
  private Progress progress;
  private FloatBuffer logits;

  /** All defaults. */
  public PrefillParams() {}

  /**
   * Tokens computed at once.
   *
   * @param chunkTokens at most 1048576; 0: chosen by the library
   * @return this
   */
  public PrefillParams chunkTokens(int chunkTokens) {
    this.chunkTokens = chunkTokens;
    return this;
  }

  /**
   * Hears of tokens done and tokens in this call: after each chunk, and at least every 250 ms
   * within one, with the same numbers again. While its text is tokenised: 0 and the text's bytes.
   *
   * @param progress null: nobody
   * @return this
   */
  public PrefillParams progress(Progress progress) {
    this.progress = progress;
    return this;
  }

  /**
   * Gets the logits of every token of the call, (tokens, vocab), from its position on; a direct
   * buffer in native byte order is written in place, another one is copied to. Unspecified after a
   * failure.
   *
   * @param logits with room for at least tokens * vocab; null: none
   * @return this
   */
  public PrefillParams logits(FloatBuffer logits) {
    this.logits = logits;
    return this;
  }

  static long write(PrefillParams from, Call call, long session) {
    if (from == null) return 0;
    wi_prefill_params to = call.own(new wi_prefill_params());
    to.setChunk_tokens(from.chunkTokens);
    Progress progress = from.progress;
    if (progress != null) {
      to.setProgress(Native.callback(Callbacks.PROGRESS));
      to.setProgress_user(call.callback(progress));
    }
    FloatBuffer given = from.logits;
    if (given != null) {
      FloatBuffer logits = given.duplicate(); // with a place and an end that are nobody else's
      to.setLogits(call.floatsOut(logits, written(call, session)));
      to.setLogits_capacity(logits.remaining());
    }
    return to.address();
  }

  /** How many logits a call that begins now has written when it has ended. */
  private static LongSupplier written(Call call, long session) {
    long before = tokens(call, session);
    return () -> {
      long tokens = tokens(call, session) - before;
      int status = Native.wi_session_logits(session, 0, 0, 0, call.out(), call.error());
      if (status != wi_status_code.WI_OK) throw call.failure(status);
      return tokens * call.outLong(); // of the vocabulary each
    };
  }

  private static long tokens(Call call, long session) {
    int status = Native.wi_session_tokens(session, 0, 0, call.out(), call.error());
    if (status != wi_status_code.WI_OK) throw call.failure(status);
    return call.outLong();
  }
}
