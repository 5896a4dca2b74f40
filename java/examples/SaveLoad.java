import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.PrintStream;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import waveinfer.Event;
import waveinfer.Model;
import waveinfer.Session;
import waveinfer.TokenizeFlag;
import waveinfer.WaveInferException;
import waveinfer.WaveRuntime;

/**
 * Keeps a session in a file: what was read need not be read again, not even by another process.
 * Reads the text, saves the session, goes on; loads it, goes on from there: the same words.
 *
 * <pre>java -cp waveinfer-0.2.0.jar SaveLoad.java MODEL TEXT FILE</pre>
 */
public class SaveLoad {
  private static final PrintStream out = new PrintStream(System.out, true, UTF_8);
  private static final String USAGE =
      "usage: java -cp waveinfer-0.2.0.jar SaveLoad.java MODEL TEXT FILE\n"
          + "Example: java -cp waveinfer-0.2.0.jar SaveLoad.java m.gguf"
          + " 'Once upon a time' story.session";

  public static void main(String[] args) {
    if (args.length == 1 && List.of("-h", "--help").contains(args[0])) {
      System.out.println(USAGE);
      return;
    }
    if (args.length != 3) {
      System.err.println(USAGE);
      System.exit(1);
    }
    Path file = Path.of(args[2]);
    try (WaveRuntime runtime = WaveRuntime.create();
        Model model = runtime.open(Path.of(args[0]));
        Session session = model.newSession()) {
      session.append(args[1], TokenizeFlag.ADD_BOS);
      session.save(file);
      List<Integer> before = goOn(session);

      try (Session loaded = model.load(file)) {
        out.println("loaded: " + loaded.tokenCount() + " tokens");
        List<Integer> after = goOn(loaded);
        out.println("the same tokens: " + (before.equals(after) ? "yes" : "no"));
      }
    } catch (WaveInferException e) {
      System.err.println("save_load: " + e.status() + ": " + e.getMessage());
      System.exit(1);
    }
  }

  /** Prints what comes next, and gives its tokens. */
  private static List<Integer> goOn(Session session) {
    List<Event> events = Stream.generate(session::decode).limit(32).toList();
    events.forEach(event -> out.print(event.text()));
    out.println();
    return events.stream().map(Event::token).toList();
  }
}
