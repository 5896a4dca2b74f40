package waveinfer;

import java.util.List;
import java.util.Objects;

/**
 * One message of a conversation.
 *
 * @param role "system", "user", "assistant", "tool" or what the template knows; do not take roles
 *     from strangers
 * @param content its text; null: an empty text, or what {@code fieldsJson} calls content
 * @param fieldsJson a JSON object of more fields of the message (tool_calls, tool_call_id, name and
 *     so on), or null
 */
public record ChatMessage(String role, String content, String fieldsJson) {
  /**
   * A message.
   *
   * @param role its role
   * @param content its text, or null
   * @param fieldsJson more fields, or null
   */
  public ChatMessage {
    Objects.requireNonNull(role);
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
   * What the model said.
   *
   * @param content its text
   * @return a message
   */
  public static ChatMessage assistant(String content) {
    return new ChatMessage("assistant", content, null);
  }

  static long write(List<ChatMessage> messages, Call call) {
    long size = wi_chat_message.struct_bytes();
    long first = call.allocate(messages.size() * size);
    long address = first;
    for (ChatMessage message : messages) {
      wi_chat_message to = new wi_chat_message(address, false);
      to.setStruct_size((int) size);
      to.setRole(call.name(message.role));
      if (message.content != null) {
        byte[] bytes = Texts.bytes(message.content);
        to.setContent(call.copy(bytes));
        to.setContent_length(bytes.length);
      }
      to.setFields_json(call.name(message.fieldsJson));
      address += size;
    }
    return first;
  }
}
