package waveinfer;

import java.util.ArrayList;
import java.util.List;

/**
 * One token of an answer, or the end of it.
 *
 * @param kind whether the answer goes on: while it is {@link Kind#TOKEN}
 * @param token its id, in [0, vocab); -1 where a task ends without one
 * @param text whole code points, U+FFFD for what can never become one; empty while a code point is
 *     incomplete, and for control tokens. At the end of an answer, what was held back
 * @param logprob natural logarithm of the token's probability under the model itself: softmax of
 *     its logits as {@link Session#logits()} gives them, at temperature 1, over the whole
 *     vocabulary, before bias, processor, penalty and cuts
 * @param top the likeliest tokens under the same softmax, best first, of equals the lower id; empty
 *     unless {@link SamplingParams#topLogprobs} asks for them
 */
public record Event(Kind kind, int token, String text, float logprob, List<TokenLogprob> top) {

  /** What an event says of the answer. */
  public enum Kind {
    /** It goes on. */
    TOKEN(wi_event_kind.WI_EVENT_TOKEN),
    /** The token ends it. */
    END(wi_event_kind.WI_EVENT_END),
    /** The token completes one of the stop strings. */
    STOP(wi_event_kind.WI_EVENT_STOP),
    /** Of tasks only: as many tokens as were asked for are written. */
    LIMIT(wi_event_kind.WI_EVENT_LIMIT),
    /** Of tasks only: cancelled. */
    CANCELLED(wi_event_kind.WI_EVENT_CANCELLED),
    /** Of tasks only: failed; {@link Task#info} says why. */
    FAILED(wi_event_kind.WI_EVENT_FAILED),
    /** One that this version of the binding does not know; it ends the answer too. */
    UNKNOWN(-1);

    private static final Kind[] kinds = values();

    private final int value;

    Kind(int value) {
      this.value = value;
    }

    static Kind of(int value) {
      for (Kind kind : kinds) {
        if (kind.value == value) return kind;
      }
      return UNKNOWN;
    }
  }

  /**
   * Whether this is the last event of an answer.
   *
   * @return true for every kind but {@link Kind#TOKEN}
   */
  public boolean isEnd() {
    return kind != Kind.TOKEN;
  }

  /** The last event of a task that had no memory for it. */
  static Event last(TaskInfo.State state) {
    Kind kind =
        switch (state) {
          case DONE -> Kind.END;
          case CANCELLED -> Kind.CANCELLED;
          default -> Kind.FAILED;
        };
    return new Event(kind, -1, "", 0, List.of());
  }

  /** Copies what C has written; its text is valid until the next call on its session or task. */
  static Event of(wi_event from) {
    return new Event(
        Kind.of(from.getKind()),
        from.getToken(),
        Texts.at(from.getText(), from.getText_length()),
        from.getLogprob(),
        top(from.getTop(), from.getTop_count()));
  }

  private static List<TokenLogprob> top(long address, long count) {
    if (count == 0) return List.of();
    List<TokenLogprob> top = new ArrayList<>((int) count);
    for (long i = 0; i < count; i++) {
      wi_token_logprob at =
          new wi_token_logprob(address + i * wi_token_logprob.struct_bytes(), false);
      top.add(new TokenLogprob(at.getToken(), at.getLogprob()));
    }
    return List.copyOf(top);
  }
}
