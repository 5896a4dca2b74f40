package waveinfer;

import java.util.EnumSet;
import java.util.Set;

/**
 * One token of a vocabulary.
 *
 * @param token its id
 * @param flags what it is
 * @param bytes as detokenize writes it within a text with its special tokens; any bytes, perhaps a
 *     part of a code point. A copy
 */
public record TokenInfo(int token, Set<Flag> flags, byte[] bytes) {

  /** What a token is. */
  public enum Flag {
    /** {@code <|end|>} and the like: written by detokenize only if asked for. */
    CONTROL(wi_token_flag.WI_TOKEN_CONTROL),
    /** Ends an answer: decode gives it as {@link Event.Kind#END}. */
    END(wi_token_flag.WI_TOKEN_END),
    /** Stands for one byte, which is part of a code point or of no UTF-8. */
    BYTE(wi_token_flag.WI_TOKEN_BYTE),
    /** Fills up the vocabulary: no text becomes it. */
    UNUSED(wi_token_flag.WI_TOKEN_UNUSED),
    /** A word that was added to the vocabulary: found in text as a whole. */
    USER(wi_token_flag.WI_TOKEN_USER);

    private final int value;

    Flag(int value) {
      this.value = value;
    }
  }

  /**
   * The bytes as text.
   *
   * @return U+FFFD where they are no UTF-8
   */
  public String text() {
    return Texts.of(bytes);
  }

  static TokenInfo of(int token, wi_token_info from) {
    Set<Flag> flags = EnumSet.noneOf(Flag.class);
    for (Flag flag : Flag.values()) {
      if ((from.getFlags() & flag.value) != 0) flags.add(flag);
    }
    return new TokenInfo(
        token, Set.copyOf(flags), Native.bytes(from.getText(), from.getText_length()));
  }
}
