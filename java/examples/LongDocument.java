import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import waveinfer.ChatMessage;
import waveinfer.ChatParams;
import waveinfer.Model;
import waveinfer.PrefillParams;
import waveinfer.Session;
import waveinfer.SessionStats;
import waveinfer.Task;
import waveinfer.TaskParams;
import waveinfer.WaveInferException;
import waveinfer.WaveRuntime;

/**
 * Reads a long document once, then answers several questions about it at the same time, each from a
 * fork. Ctrl-C ends reading and answering. Progress and statistics go to standard error.
 *
 * <pre>java -cp waveinfer-0.2.0.jar LongDocument.java MODEL DOCUMENT QUESTION...</pre>
 */
public class LongDocument {
  private static final PrintStream out = new PrintStream(System.out, true, UTF_8);
  private static final String USAGE =
      "usage: java -cp waveinfer-0.2.0.jar LongDocument.java MODEL DOCUMENT QUESTION...\n"
          + "Example: java -cp waveinfer-0.2.0.jar LongDocument.java m.gguf book.txt"
          + " 'Who wrote the letter?'";

  public static void main(String[] args) {
    if (args.length == 1 && List.of("-h", "--help").contains(args[0])) {
      System.out.println(USAGE);
      return;
    }
    if (args.length < 3) {
      System.err.println(USAGE);
      System.exit(1);
    }
    Thread reader = Thread.currentThread();
    Thread interrupt = new Thread(() -> interrupt(reader));
    Runtime.getRuntime().addShutdownHook(interrupt);
    try {
      ask(Path.of(args[0]), Path.of(args[1]), List.of(args).subList(2, args.length));
    } catch (WaveInferException e) {
      System.err.println("\nlong_document: " + e.status() + ": " + e.getMessage());
      Runtime.getRuntime().halt(1);
    } catch (IOException e) {
      System.err.println("\nlong_document: " + e);
      Runtime.getRuntime().halt(1);
    }
  }

  /** The VM ends, by Ctrl-C or because all is done: the call that is running ends too. */
  private static void interrupt(Thread reader) {
    reader.interrupt();
    try {
      reader.join();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private static void ask(Path file, Path text, List<String> questions) throws IOException {
    try (WaveRuntime runtime = WaveRuntime.create();
        Model model = runtime.open(file);
        Session document = model.newSession()) {
      // What all these conversations begin with is the document: it is read once.
      byte[] opening = join(Files.readAllBytes(text), "\n\n"); // some may be no UTF-8
      int[] shared = userTurn(model, opening);
      List<int[]> asked = new ArrayList<>();
      for (String question : questions) {
        int[] tokens = userTurn(model, join(opening, question));
        asked.add(tokens);
        int differs = Arrays.mismatch(shared, tokens);
        if (differs >= 0) shared = Arrays.copyOf(shared, differs);
      }
      document.prefill(shared, new PrefillParams().progress(LongDocument::show), null);
      System.err.println();

      List<Task> tasks = new ArrayList<>();
      for (int[] tokens : asked) {
        int[] rest = Arrays.copyOfRange(tokens, shared.length, tokens.length);
        try (Session fork = document.fork()) { // the task keeps it
          tasks.add(fork.submit(new TaskParams().tokens(rest).maxTokens(128)));
        }
      }
      for (int i = 0; i < tasks.size(); i++) {
        out.print(questions.get(i) + "\n  ");
        try (Task task = tasks.get(i)) {
          task.events().forEach(event -> out.print(event.text()));
        }
        out.println();
      }
      SessionStats stats = document.stats();
      System.err.printf(
          Locale.ROOT,
          "%d tokens read in %.1f s, %d segments, %.1f MB of KV cache, %.1f MB of it index%n",
          stats.tokens(),
          stats.prefillNs() / 1e9,
          stats.segments(),
          stats.kvBytes() / 1e6,
          stats.indexBytes() / 1e6);
    }
  }

  private static void show(long done, long total) {
    System.err.printf("\rreading: %3.0f %%", 100.0 * done / total);
  }

  /** A user's turn as the model's chat template has it, up to where the answer begins. */
  private static int[] userTurn(Model model, byte[] text) {
    return model.chatTokens(
        List.of(ChatMessage.user(text)), new ChatParams().addGenerationPrompt(true));
  }

  private static byte[] join(byte[] text, String more) {
    byte[] end = more.getBytes(UTF_8);
    return ByteBuffer.allocate(text.length + end.length).put(text).put(end).array();
  }
}
