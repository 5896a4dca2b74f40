package waveinfer;

import java.nio.FloatBuffer;

/**
 * The logits that a {@link LogitsProcessor} may change, (vocab) f32. They are the library's own
 * memory: a use after the processor has returned, or on another thread, is an {@link
 * IllegalStateException}.
 */
public final class Logits {
  private FloatBuffer values;
  private final Thread owner = Thread.currentThread();

  Logits(FloatBuffer values) {
    this.values = values;
  }

  void end() {
    values = null;
  }

  private FloatBuffer values() {
    if (Thread.currentThread() != owner || values == null) {
      throw new IllegalStateException("logits are used outside of their processor");
    }
    return values;
  }

  /**
   * How many there are.
   *
   * @return the model's vocabulary
   */
  public int size() {
    return values().capacity();
  }

  /**
   * The logit of a token.
   *
   * @param token in [0, vocab)
   * @return its logit
   */
  public float get(int token) {
    return values().get(token);
  }

  /**
   * Changes the logit of a token.
   *
   * @param token in [0, vocab)
   * @param logit {@link Float#NEGATIVE_INFINITY} forbids it
   */
  public void set(int token, float logit) {
    values().put(token, logit);
  }

  /**
   * Forbids a token.
   *
   * @param token in [0, vocab)
   */
  public void forbid(int token) {
    set(token, Float.NEGATIVE_INFINITY);
  }

  /**
   * Copies the logits of the first tokens.
   *
   * @param to as many as it has, at most vocab
   */
  public void copyTo(float[] to) {
    values().get(0, to);
  }

  /**
   * Replaces the logits of the first tokens.
   *
   * @param from as many as it has, at most vocab
   */
  public void copyFrom(float[] from) {
    values().put(0, from);
  }
}
