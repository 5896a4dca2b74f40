import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import waveinfer.CancelToken;
import waveinfer.Model;
import waveinfer.ModelParams;
import waveinfer.RuntimeParams;
import waveinfer.Session;
import waveinfer.WaveInferException;
import waveinfer.WaveRuntime;

/**
 * What goes wrong, and how it looks: a status, a message that names what and where, and everything
 * as it was.
 *
 * <pre>java -cp waveinfer-0.2.0.jar Errors.java MODEL</pre>
 */
public class Errors {
  private static final PrintStream out = new PrintStream(System.out, true, UTF_8);
  private static final String USAGE =
      "usage: java -cp waveinfer-0.2.0.jar Errors.java MODEL\n"
          + "Example: java -cp waveinfer-0.2.0.jar Errors.java m.gguf";

  private static void show(String what, Runnable call) {
    out.println(what);
    try {
      call.run();
      out.println("  OK");
    } catch (WaveInferException e) { // or by name: WaveInferException.Budget
      tell(e);
    }
  }

  private static void tell(WaveInferException e) {
    out.println("  " + e.status() + ": " + e.getMessage());
  }

  public static void main(String[] args) {
    if (args.length == 1 && List.of("-h", "--help").contains(args[0])) {
      System.out.println(USAGE);
      return;
    }
    if (args.length != 1) {
      System.err.println(USAGE);
      System.exit(1);
    }
    // A million bytes for keys and values of all sessions.
    try (WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().kvBudgetBytes(1_000_000));
        Model model = runtime.open(Path.of(args[0]));
        Session session = model.newSession()) {
      show("a file that is not there", () -> runtime.open(Path.of("missing.gguf")));
      ByteBuffer zeros = ByteBuffer.allocateDirect(64);
      show("a file that is no model", () -> runtime.open(zeros, new ModelParams(), null));
      show("a token that is none", () -> session.prefill(1, 2, 1 << 30));
      show("an answer to nothing", session::decode);

      int[] tokens = new int[20_000];
      Arrays.setAll(tokens, i -> 100 + i % 1000);
      show("a prompt beyond the budget", () -> session.prefill(tokens));

      CancelToken cancel = new CancelToken();
      cancel.trigger();
      int[] few = Arrays.copyOf(tokens, 200);
      show("a call that was cancelled", () -> session.prefill(few, null, cancel));
      show("and the session is as it was", () -> session.prefill(few));
    } catch (WaveInferException e) {
      out.println("errors");
      tell(e);
      System.exit(1);
    }
  }
}
