package waveinfer;

import java.nio.charset.StandardCharsets;

/** UTF-8. */
final class Texts {
  private Texts() {}

  static String of(byte[] bytes) {
    return new String(bytes, StandardCharsets.UTF_8);
  }

  static String at(long address, long length) {
    return length == 0 ? "" : of(Native.bytes(address, length));
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
