package waveinfer;

import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** One message of a conversation. Two of the same role, bytes and fields are equal. */
public final class ChatMessage {
  private final String role;
  private final byte[] content; // null: none
  private final String fieldsJson;

  /**
   * A message.
   *
   * @param role "system", "user", "assistant", "tool" or what the template knows; do not take roles
   *     from strangers
   * @param content its text; null: an empty text, or what {@code fieldsJson} calls content
   * @param fieldsJson a JSON object of more fields of the message (tool_calls, tool_call_id, name
   *     and so on), or null
   */
  public ChatMessage(String role, String content, String fieldsJson) {
    this(role, content == null ? null : Texts.bytes(content), fieldsJson);
  }

  private ChatMessage(String role, byte[] content, String fieldsJson) {
    this.role = Objects.requireNonNull(role);
    this.content = content;
    this.fieldsJson = fieldsJson;
  }

  /**
   * A message whose text may be no UTF-8: its bytes are passed on as they are.
   *
   * @param role as of {@link #ChatMessage(String, String, String)}
   * @param content its text, copied; null as there
   * @param fieldsJson as there
   * @return a message
   */
  public static ChatMessage ofBytes(String role, byte[] content, String fieldsJson) {
    return new ChatMessage(role, content == null ? null : content.clone(), fieldsJson);
  }

  /**
   * What rules the conversation.
   *
   * @param content its text
   * @return a message
   */
  public static ChatMessage system(String content) {
    return new ChatMessage("system", content, null);
  }

  /**
   * What the user says.
   *
   * @param content its text
   * @return a message
   */
  public static ChatMessage user(String content) {
    return new ChatMessage("user", content, null);
  }

  /**
   * What the user says, in bytes that may be no UTF-8.
   *
   * @param content its text, copied
   * @return a message
   */
  public static ChatMessage user(byte[] content) {
    return ofBytes("user", content, null);
  }

  /**
   * What the model said.
   *
   * @param content its text
   * @return a message
   */
  public static ChatMessage assistant(String content) {
    return new ChatMessage("assistant", content, null);
  }

  /**
   * Who says it.
   *
   * @return "system", "user", "assistant", "tool" or another
   */
  public String role() {
    return role;
  }

  /**
   * What is said.
   *
   * @return its text, with U+FFFD for bytes that are no UTF-8; null: none
   */
  public String content() {
    return content == null ? null : Texts.of(content);
  }

  /**
   * More fields of the message.
   *
   * @return a JSON object, or null
   */
  public String fieldsJson() {
    return fieldsJson;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof ChatMessage message
        && role.equals(message.role)
        && Arrays.equals(content, message.content)
        && Objects.equals(fieldsJson, message.fieldsJson);
  }

  @Override
  public int hashCode() {
    return Objects.hash(role, Arrays.hashCode(content), fieldsJson);
  }

  @Override
  public String toString() {
    return "ChatMessage[role="
        + role
        + ", content="
        + content()
        + ", fieldsJson="
        + fieldsJson
        + "]";
  }

  int bytes() {
    return content == null ? 0 : content.length;
  }

  /** Of a list that stays as it is. */
  static long write(List<ChatMessage> messages, Call call) {
    long size = wi_chat_message.struct_bytes();
    long first = call.allocate(messages.size() * size);
    long address = first;
    for (ChatMessage message : messages) {
      wi_chat_message to = new wi_chat_message(address, false);
      to.setStruct_size((int) size);
      to.setRole(call.name(message.role));
      if (message.content != null) {
        to.setContent(call.copy(message.content));
        to.setContent_length(message.content.length);
      }
      to.setFields_json(call.name(message.fieldsJson));
      address += size;
    }
    return first;
  }
}
