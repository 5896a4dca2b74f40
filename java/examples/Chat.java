import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import waveinfer.ChatMessage;
import waveinfer.ChatParams;
import waveinfer.Model;
import waveinfer.Session;
import waveinfer.WaveInferException;
import waveinfer.WaveRuntime;

/**
 * A conversation with a model: each line of standard input is a turn, the answer is streamed.
 *
 * <pre>java -cp waveinfer-0.2.0.jar Chat.java MODEL</pre>
 *
 * Before each answer the whole conversation is rendered in the model's own chat template; what the
 * session has of it already is kept, the rest is read.
 */
public class Chat {
  private static final PrintStream out = new PrintStream(System.out, true, UTF_8);
  private static final String USAGE =
      "usage: java -cp waveinfer-0.2.0.jar Chat.java MODEL\n"
          + "Example: java -cp waveinfer-0.2.0.jar Chat.java m.gguf";

  public static void main(String[] args) throws IOException {
    if (args.length == 1 && List.of("-h", "--help").contains(args[0])) {
      System.out.println(USAGE);
      return;
    }
    if (args.length != 1) {
      System.err.println(USAGE);
      System.exit(1);
    }
    try (WaveRuntime runtime = WaveRuntime.create();
        Model model = runtime.open(Path.of(args[0]));
        Session session = model.newSession()) {
      List<ChatMessage> turns = new ArrayList<>();
      for (byte[] line = readLine(System.in); line != null; line = readLine(System.in)) {
        turns.add(ChatMessage.user(line));
        readConversation(model, session, turns);
        turns.add(ChatMessage.assistant(answer(session)));
      }
    } catch (WaveInferException e) {
      System.err.println("chat: " + e.status() + ": " + e.getMessage());
      System.exit(1);
    }
  }

  /** A line's bytes, of which some may be no UTF-8; null at the end. */
  private static byte[] readLine(InputStream in) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    int next = in.read();
    if (next < 0) return null;
    for (; next >= 0 && next != '\n'; next = in.read()) line.write(next);
    return line.toByteArray();
  }

  /** Brings the session to where the assistant's next answer begins. */
  private static void readConversation(Model model, Session session, List<ChatMessage> turns) {
    int[] wanted = model.chatTokens(turns, new ChatParams().addGenerationPrompt(true));
    int[] had = session.tokens();
    int differs = Arrays.mismatch(had, wanted);
    int same = differs < 0 ? had.length : differs;
    session.truncate(same);
    session.prefill(Arrays.copyOfRange(wanted, same, wanted.length));
  }

  private static String answer(Session session) {
    StringBuilder text = new StringBuilder();
    session
        .events()
        .limit(256)
        .forEach(
            event -> {
              out.print(event.text());
              out.flush();
              text.append(event.text());
            });
    out.println();
    return text.toString();
  }
}
