package waveinfer;

/**
 * A way of indexing and selecting, to be named in {@link PolicyParams}.
 *
 * @param name its name
 * @param description one line in English
 */
public record PolicyInfo(String name, String description) {
  static PolicyInfo of(wi_policy_info from) {
    return new PolicyInfo(
        Texts.of(Native.text(from.getName())), Texts.of(Native.text(from.getDescription())));
  }
}
