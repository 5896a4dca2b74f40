package waveinfer;

import java.util.List;
import java.util.Map;

/**
 * How decode picks a token from the logits: logit bias, processor, penalty, temperature, top-k,
 * min-p, top-p, in this order. The same seed and the same logits give the same tokens, on every
 * machine. What is not set is the default, which is greedy. Copied by the call.
 */
public final class SamplingParams {
  private float temperature;
  private int topK;
  private float topP;
  private float minP;
  private float repetitionPenalty;
  private int repetitionWindow;
  private long seed;
  private Map<Integer, Float> logitBias = Map.of();
  private LogitsProcessor logitsProcessor;
  private List<String> stops = List.of();
  private int topLogprobs;

  /** All defaults. */
  public SamplingParams() {}

  /**
   * The temperature.
   *
   * @param temperature [0, 100]; 0: greedy, always the best token
   * @return this
   */
  public SamplingParams temperature(float temperature) {
    this.temperature = temperature;
    return this;
  }

  /**
   * Keeps so many best tokens.
   *
   * @param topK 0: all
   * @return this
   */
  public SamplingParams topK(int topK) {
    this.topK = topK;
    return this;
  }

  /**
   * Keeps the best tokens that have this probability together.
   *
   * @param topP (0, 1]; 0: all
   * @return this
   */
  public SamplingParams topP(float topP) {
    this.topP = topP;
    return this;
  }

  /**
   * Drops tokens less likely than this share of the best one.
   *
   * @param minP [0, 1); 0: off
   * @return this
   */
  public SamplingParams minP(float minP) {
    this.minP = minP;
    return this;
  }

  /**
   * Positive logits of recent tokens are divided by it, negative ones multiplied.
   *
   * @param repetitionPenalty (0, 100]; 0: 1, off
   * @return this
   */
  public SamplingParams repetitionPenalty(float repetitionPenalty) {
    this.repetitionPenalty = repetitionPenalty;
    return this;
  }

  /**
   * Recent tokens that the penalty looks at.
   *
   * @param repetitionWindow 0: 64
   * @return this
   */
  public SamplingParams repetitionWindow(int repetitionWindow) {
    this.repetitionWindow = repetitionWindow;
    return this;
  }

  /**
   * Where random numbers begin.
   *
   * @param seed any
   * @return this
   */
  public SamplingParams seed(long seed) {
    this.seed = seed;
    return this;
  }

  /**
   * Is added to the logits of tokens.
   *
   * @param logitBias by token in [0, vocab); {@link Float#NEGATIVE_INFINITY} forbids one; not NaN
   * @return this
   */
  public SamplingParams logitBias(Map<Integer, Float> logitBias) {
    this.logitBias = Map.copyOf(logitBias);
    return this;
  }

  /**
   * Changes the logits of each token before it is sampled.
   *
   * @param logitsProcessor null: none
   * @return this
   */
  public SamplingParams logitsProcessor(LogitsProcessor logitsProcessor) {
    this.logitsProcessor = logitsProcessor;
    return this;
  }

  /**
   * Strings that end an answer. Text that may yet become one is held back; when one is complete the
   * event is {@link Event.Kind#STOP}, and neither it nor what its last token has beyond it is ever
   * told.
   *
   * @param stops at most 64, each of 1 to 1024 bytes
   * @return this
   */
  public SamplingParams stops(List<String> stops) {
    this.stops = List.copyOf(stops);
    return this;
  }

  /**
   * How many of the likeliest tokens an event lists.
   *
   * @param topLogprobs 0 to 64
   * @return this
   */
  public SamplingParams topLogprobs(int topLogprobs) {
    this.topLogprobs = topLogprobs;
    return this;
  }

  static long write(SamplingParams from, Call call) {
    if (from == null) return 0;
    wi_sampling_params to = call.own(new wi_sampling_params());
    to.setTemperature(from.temperature);
    to.setTop_k(from.topK);
    to.setTop_p(from.topP);
    to.setMin_p(from.minP);
    to.setRepetition_penalty(from.repetitionPenalty);
    to.setRepetition_window(from.repetitionWindow);
    to.setSeed(from.seed);
    to.setTop_logprobs(from.topLogprobs);
    writeBias(from.logitBias, to, call);
    writeStops(from.stops, to, call);
    LogitsProcessor processor = from.logitsProcessor;
    if (processor != null) {
      call.logitsHook = new LogitsHook(processor);
      to.setLogits_callback(Native.callback(Callbacks.LOGITS));
      to.setLogits_user(call.logitsHook.id());
    }
    return to.address();
  }

  private static void writeBias(Map<Integer, Float> logitBias, wi_sampling_params to, Call call) {
    long address = call.allocate(logitBias.size() * wi_logit_bias.struct_bytes());
    to.setLogit_bias(logitBias.isEmpty() ? 0 : address);
    to.setLogit_bias_count(logitBias.size());
    for (Map.Entry<Integer, Float> entry : logitBias.entrySet()) {
      wi_logit_bias bias = new wi_logit_bias(address, false);
      bias.setToken(entry.getKey());
      bias.setBias(entry.getValue());
      address += wi_logit_bias.struct_bytes();
    }
  }

  private static void writeStops(List<String> stops, wi_sampling_params to, Call call) {
    long address = call.allocate(stops.size() * wi_text.struct_bytes());
    to.setStops(stops.isEmpty() ? 0 : address);
    to.setStop_count(stops.size());
    for (String stop : stops) {
      byte[] bytes = Texts.bytes(stop);
      wi_text text = new wi_text(address, false);
      text.setText(call.copy(bytes));
      text.setLength(bytes.length);
      address += wi_text.struct_bytes();
    }
  }
}
