package waveinfer;

/** How a {@link Model} is opened. What is not set is the default. Copied by the call. */
public final class ModelParams {
  private Precision precision = Precision.FAST;
  private Weights weights = Weights.MAPPED;
  private Progress progress;

  /** All defaults. */
  public ModelParams() {}

  /**
   * How prefill multiplies, in all sessions of the model.
   *
   * @param precision the precision
   * @return this
   */
  public ModelParams precision(Precision precision) {
    this.precision = precision;
    return this;
  }

  /**
   * Where the weights lie while the model lives.
   *
   * @param weights where
   * @return this
   */
  public ModelParams weights(Weights weights) {
    this.weights = weights;
    return this;
  }

  /**
   * Hears of bytes of the weights looked at or copied, and of bytes in all, which is 0 until the
   * files' tables are read; at least every 250 ms.
   *
   * @param progress null: nobody
   * @return this
   */
  public ModelParams progress(Progress progress) {
    this.progress = progress;
    return this;
  }

  wi_model_params write(Call call) {
    wi_model_params to = call.own(new wi_model_params());
    to.setPrecision(precision.value);
    to.setWeights(weights.value);
    Progress reported = progress;
    if (reported != null) {
      to.setProgress(Native.callback(Callbacks.PROGRESS));
      to.setProgress_user(call.callback(reported));
    }
    return to;
  }

  /**
   * How prefill multiplies by weights, keys and values narrower than f32; decoding is in f32, but
   * with {@link #INT8}.
   */
  public enum Precision {
    /**
     * In bf16 with f32 sums where that is faster (AMX, AMD's AVX512_BF16, ARM's BF16); logits are
     * off by 1 or 2 % of their spread. Elsewhere as {@link #F32}, but by quantised weights as in
     * decoding.
     */
    FAST(wi_precision.WI_PRECISION_FAST),
    /** Everything in f32; where {@link #FAST} is in bf16 half as fast, a quarter with AMX. */
    F32(wi_precision.WI_PRECISION_F32),
    /** Where there is AMX, each number as the sum of two bf16 numbers; elsewhere {@link #F32}. */
    HIGH(wi_precision.WI_PRECISION_HIGH),
    /** By quantised weights in integers of 8 bits, decoding too; else as {@link #FAST}. */
    INT8(wi_precision.WI_PRECISION_INT8);

    private final int value;

    Precision(int value) {
      this.value = value;
    }
  }

  /** Where weights lie. */
  public enum Weights {
    /**
     * In the file, which must not change while the model lives: one that is cut short ends the
     * process.
     */
    MAPPED(wi_weights.WI_WEIGHTS_MAPPED),
    /** In memory of this process alone; what becomes of the file does not matter. */
    COPIED(wi_weights.WI_WEIGHTS_COPIED);

    private final int value;

    Weights(int value) {
      this.value = value;
    }
  }
}
